"""Modes of synchronization: what workers exchange, when, and who sends it to whom.

`config` alone is light; everything else needs torch.
"""
