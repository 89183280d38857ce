"""Threshold policies decide each parameter's tau before its pass, independently of the rule.

A policy is one file with its fields, what it remembers of a parameter, and what it decides. It has no state:
the caller keeps, saves and restores its memories.
"""
