"""What a worker sends for one synchronization, before it is written down as bytes.

Legend: n elements, k of them sent.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernels.threshold import VALUE_DTYPE, ThresholdRule


@dataclass(frozen=True)
class ValueFormat:
    """How a rule's values stand on the wire, whichever codec writes the positions."""

    dense_dtype: np.dtype[Any]
    """Type of one element when all n are written out, zeros for those not sent."""
    value_bytes: int
    """Bytes beside each position."""
    sign_apart: bool
    """Whether the sign needs a bit of its own (a float carries it)."""
    paper_bits: int
    """Value bits of an element sent, as Anoosheh counts them (section 2.1)."""


VALUE_FORMAT: dict[ThresholdRule, ValueFormat] = {
    "wgt": ValueFormat(np.dtype("<f4"), 4, False, 32),
    "bgt": ValueFormat(np.dtype("i1"), 0, True, 1),
    "qgt": ValueFormat(np.dtype("<i2"), 1, True, 8),
}


@dataclass(frozen=True)
class SparseUpdate:
    """k of n elements, each with a position, a sign and, by rule, a value.

    Attributes:
        rule: `wgt`, `bgt` or `qgt`.
        n: elements of the gradient, at most 2^31 - 1.
        tau: the threshold they were chosen with; part of the value for bgt and qgt.
        words: uint32 [k], position << 1 | sign, ascending.
        values: float32 [k] signed values (wgt), uint8 [k] levels 1 to 255 (qgt), uint8 [0] (bgt).
    """

    rule: ThresholdRule
    n: int
    tau: np.float32
    words: NDArray[np.uint32]
    values: NDArray[Any]

    @property
    def k(self) -> int:
        """Elements sent."""
        return int(self.words.size)

    @property
    def paper_bits(self) -> int:
        """Value bits of the whole update."""
        return self.k * VALUE_FORMAT[self.rule].paper_bits

    @classmethod
    def empty(cls, rule: ThresholdRule, n: int, tau: np.float32) -> "SparseUpdate":
        """An update in which nothing is sent."""
        return cls(rule, n, tau, np.empty(0, np.uint32), np.empty(0, VALUE_DTYPE[rule]))
