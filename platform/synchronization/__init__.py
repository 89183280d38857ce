"""Modes of synchronization; `spec.synchronization` has their fields."""
