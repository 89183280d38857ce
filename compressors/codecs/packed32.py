"""packed32: one 32-bit word an element, 31 bits of position and the sign (Strom, section 2.5).

Body: k words `position << 1 | sign`, little endian, ascending; then the values, if the rule has any.
"""

import numpy as np

from ..errors import CorruptMessage
from ..kernels import sparse
from ..kernels.threshold import ThresholdRule
from ..update import SparseUpdate
from .base import Bytes, Codec, aligned, read_values, value_bytes, write_values


class Packed32(Codec):
    """4 bytes an element sent, and its value."""

    name = "packed32"
    code = 1

    def size(self, rule: ThresholdRule, n: int, k: int) -> int:
        """4k bytes, and the values."""
        return (4 + value_bytes(rule)) * k

    def encode(self, update: SparseUpdate, body: Bytes) -> None:
        """See `Codec.encode`."""
        body[: 4 * update.k] = update.words.astype("<u4", copy=False).view(np.uint8)
        write_values(update, body[4 * update.k :])

    def decode(self, body: Bytes, rule: ThresholdRule, n: int, k: int, tau: np.float32) -> SparseUpdate:
        """See `Codec.decode`."""
        words = aligned(body[: 4 * k], "<u4")
        if not sparse.check_ascending(words, n):
            raise CorruptMessage(f"positions do not ascend, or pass the last one, {n - 1}")
        return SparseUpdate(rule, n, tau, words, read_values(body[4 * k :], rule, words, tau))
