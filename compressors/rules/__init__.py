"""Lossy rules: what is sent of a parameter, and what is kept for later.

A sparse rule is one file with its fields, its links and its selection. Methods that send every element are
quantizers (`quantizers/`).
"""
