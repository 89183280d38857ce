"""Tracking: metric names, where runs are stored, and the writer that frees the training thread of metrics."""
