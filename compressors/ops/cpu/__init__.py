"""The passes over memory: numba on the CPU, torch operations on other devices."""
