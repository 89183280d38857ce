"""Quantizers: values into symbols, as links behind a sparse rule and as methods for whole layers.

A quantizer is a file: its fields, the link and the method that have them, and the pass that they describe.
"""
