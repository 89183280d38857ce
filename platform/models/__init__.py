"""Networks to train."""
