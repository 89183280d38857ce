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
from .base import Context, Ran, Rule, put_back
from .dense import DenseRule
from .sparse import SparseRule

__all__ = ["Context", "Ran", "Rule", "build_rule", "put_back"]

_SPARSE = (WholeGradient, BinarizedGradient, QuantizedGradient, Strom, TopK, ChunkedTopK)


def build_rule(config: CompressedMethod) -> Rule:
    """The rule that a method's configuration describes."""
    return SparseRule(config) if isinstance(config, _SPARSE) else DenseRule(config)
