"""The operations on the CPU, compiled by numba."""
