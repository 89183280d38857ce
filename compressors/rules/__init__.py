"""Lossy rules: what a parameter sends, and what it keeps for later."""

from ..config.methods import (
    BinarizedGradient,
    ChunkedTopK,
    CompressedMethod,
    QuantizedGradient,
    Strom,
    TopK,
    WholeGradient,
)
from .base import Context, Ran, Rule, Turn
from .dense import DenseRule
from .sparse import SparseRule

__all__ = ["Context", "Ran", "Rule", "Turn", "build_rule"]

_SPARSE = (WholeGradient, BinarizedGradient, QuantizedGradient, Strom, TopK, ChunkedTopK)


def build_rule(config: CompressedMethod) -> Rule:
    """The rule that a method's configuration describes."""
    return SparseRule(config) if isinstance(config, _SPARSE) else DenseRule(config)
