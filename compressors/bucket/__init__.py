"""A bucket of gradients: its layout, its memory, and how it becomes messages and is read back."""
