"""Tracking: the names of metrics, where runs are stored, and the process that sends metrics to MLflow."""
