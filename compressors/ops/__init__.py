"""Passes over arrays on each kind of device: `interface.py` defines them; `cpu` and `cuda` implement them."""
