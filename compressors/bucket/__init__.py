"""A bucket of gradients: its layout, what is kept of it, and its way into messages and back."""
