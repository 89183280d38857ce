"""What the messages of updates of every element have in common in every step."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.array import Bytes
from ...ops.cpu.byte_rows import Numbers, packed_sizes
from ...ops.offsets import Offsets
from ..codecs.every import Every
from ..forms import FORMS, Form
from ..message import HEADER, HEADER_BYTES, MAGIC, SYMBOLS, VERSION
from ..quantized import QUANTIZED

OPENING = np.dtype([*HEADER.descr, ("bits", "<u4"), ("block", "<u4")])
"""A header, and what quantized values begin with."""
_FREE = ("symbols", "length", "crc")
"""Its fields that are not the same in every step."""
HUFFMAN = SYMBOLS.index("huffman")
"""How a header says that symbols are Huffman coded."""


@dataclass(frozen=True, eq=False)
class Frame:
    """What messages of parameters of some sizes have in common in every step; int64 [m]."""

    opening: NDArray[Any]
    """[m], the header and what comes before tables; 0 for what is not known."""
    tables: tuple[tuple[Numbers, Numbers], ...]
    """For each table, where each parameter's bytes begin in the array that they share, and how many."""
    before: Numbers
    """Bytes of a body before its symbols."""
    packed: Numbers
    """Bytes of its symbols if they are packed."""
    fixed: Bytes
    """uint8 [m, bytes of the opening], 255 where it is the same in every step."""

    @property
    def opening_bytes(self) -> int:
        """Bytes of a header and what comes before tables."""
        return self.opening.dtype.itemsize


@lru_cache(64)
def frame_of(form: Form, sizes: tuple[int, ...], bits: int, block: int, offsets: Offsets) -> Frame:
    """The frame of parameters of so many elements; kept, as every step asks for the same.

    Args:
        form: of the values.
        sizes: n of each parameter.
        bits: of a symbol, or of a 16-bit float.
        block: elements of a block; 0 for one block a parameter.
        offsets: where blocks stand in the arrays that parameters share.
    """
    kind, n = QUANTIZED.get(form), np.array(sizes, np.int64)
    opening = np.zeros(n.size, HEADER if kind is None else OPENING)
    opening["magic"], opening["version"] = MAGIC, VERSION
    opening["form"], opening["codec"] = FORMS[form].code, Every.code
    opening["n"] = opening["k"] = n
    tables = []
    if kind is not None:
        opening["bits"] = bits
        opening["block"] = np.where(block < n, block, 0)
        for dtype, each in kind.block_layout(bits):
            width = dtype.itemsize * each
            tables.append((width * offsets.firsts, width * offsets.blocks))
    before = opening.dtype.itemsize - HEADER_BYTES + sum(size for _, size in tables)
    fixed = np.ones(1, opening.dtype)
    fixed.view(np.uint8)[:] = 255
    for name in _FREE:
        fixed[name] = 0
    return Frame(
        opening,
        tuple(tables),
        np.broadcast_to(before, n.shape),
        packed_sizes(n, bits),
        fixed.view(np.uint8),
    )
