"""Lossy rules: what a parameter sends, and what it keeps for later.

A sparse rule is a file: its fields, its links and its selection. Methods that send every element are
quantizers (`quantizers/`).
"""
