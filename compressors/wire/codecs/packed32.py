"""packed32: one 32-bit word an element, 31 bits of position and the sign (Strom, section 2.5).

Positions: k words `position << 1 | sign`, little endian, ascending.
"""

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ...ops.cpu import sparse
from ..update import Update
from .base import Bytes, Head, PositionCodec, aligned, need


class Packed32(PositionCodec):
    """4 bytes an element sent, and its value."""

    name = "packed32"
    code = 1
    keeps_signs = True

    def positions_size(self, update: Update) -> int:
        """4k bytes."""
        return 4 * update.k

    def write_positions(self, update: Update, section: Bytes) -> None:
        """See `PositionCodec.write_positions`."""
        assert update.words is not None
        section[:] = update.words.astype("<u4", copy=False).view(np.uint8)

    def read_positions(self, body: Bytes, head: Head) -> tuple[NDArray[np.uint32], int]:
        """See `PositionCodec.read_positions`."""
        need(body, 4 * head.k, f"{head.k} words")
        words = aligned(body[: 4 * head.k], "<u4")
        if not sparse.check_ascending(words, head.n):
            raise CorruptMessage(f"positions do not ascend, or pass the last one, {head.n - 1}")
        return words, 4 * head.k
