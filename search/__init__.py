"""Searches over any fields of a spec with Ray Tune and Optuna, and automatic thresholds."""
