"""Passes over arrays on each kind of device: `interface.py` says which; `cpu` and `cuda` have them."""
