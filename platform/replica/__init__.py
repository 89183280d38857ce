"""A worker's copy of the model, and what changes it: optimizer, learning rate, precision, random numbers."""
