"""Quantizers: values into symbols, after a sparse rule or of whole parameters."""
