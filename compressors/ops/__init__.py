"""Passes over arrays, on each kind of device: `interface.py` says which, `cpu` (numba) and `cuda` have them."""
