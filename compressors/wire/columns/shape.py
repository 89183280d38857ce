"""What the values of several updates take in their messages, before symbols are coded."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.cpu.byte_rows import packed_sizes
from ...ops.offsets import Numbers, Offsets
from ..forms import Form
from ..quantized import QUANTIZED, Quantized

OPENING = np.dtype([("bits", "<u4"), ("block", "<u4")])
"""What quantized values begin with."""


@dataclass(frozen=True, eq=False)
class Shape:
    """Of m updates; numbers are int64 [m]."""

    opening: NDArray[Any] | None
    """OPENING [m]; None where values are not quantized."""
    tables: tuple[tuple[Numbers, Numbers], ...]
    """For each table, where each update's bytes begin in the array that they share, and how many."""
    before: Numbers
    """Bytes before symbols."""
    packed: Numbers
    """Bytes of symbols that are packed."""


def shape_of(form: Form, bits: int, block: int, offsets: Offsets) -> Shape:
    """The shape of values; for arguments see `SharedValues`.

    Raises:
        CorruptMessage: symbols of this form never have so many bits.
    """
    kind = QUANTIZED.get(form)
    if kind is None:
        return Shape(None, (), np.zeros(offsets.sizes.size, np.int64), packed_sizes(offsets.sizes, bits))
    return _quantized_shape(kind, bits, block, offsets)


@lru_cache(64)  # most steps ask for the same
def _quantized_shape(kind: type[Quantized], bits: int, block: int, offsets: Offsets) -> Shape:
    n = offsets.sizes
    opening = np.empty(n.size, OPENING)
    opening["bits"], opening["block"] = bits, np.where(block < n, block, 0)
    tables, before = [], np.full(n.size, OPENING.itemsize, np.int64)
    for dtype, each in kind.block_layout(bits):
        width = dtype.itemsize * each
        tables.append((width * offsets.firsts, width * offsets.blocks))
        before += tables[-1][1]
    return Shape(opening, tuple(tables), before, packed_sizes(n, bits))
