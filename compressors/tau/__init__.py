"""Threshold policies: each parameter's tau, decided before its pass, apart from the rule.

A policy is a file: its fields, what it remembers of a parameter, and what it decides. It keeps nothing
itself: memories are kept, saved and restored by the caller.
"""
