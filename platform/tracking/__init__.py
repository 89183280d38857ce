"""Tracking: the names of metrics, where runs are stored, and the thread that writes metrics to MLflow."""
