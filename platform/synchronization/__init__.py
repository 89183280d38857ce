"""How workers come to agree: what is exchanged, when, and who sends it to whom.

`config` alone is light; everything else needs torch.
"""
