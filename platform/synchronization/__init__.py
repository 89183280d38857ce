"""Modes of synchronization: what workers exchange, when, and who sends it to whom.

`config` and `validation` are light; everything else needs torch.
"""
