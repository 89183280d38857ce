"""Searches over any field of a spec, on Ray Tune with Optuna, and the front that they find."""
