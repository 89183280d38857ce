"""bitmap: one bit for each of the n elements says whether it is sent.

Body: ceil(n / 8) bytes, element 0 in the lowest bit of the first; for bgt and qgt ceil(k / 8) bytes
of signs (1 is minus) in the same order; then the values, if the rule has any. Spare bits are zero.
"""

import numpy as np

from ..errors import CorruptMessage
from ..kernels import sparse
from ..kernels.threshold import ThresholdRule
from ..update import VALUE_FORMAT, SparseUpdate
from .base import Bytes, Codec, read_values, value_bytes, write_values


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _spare_bits_set(packed: Bytes, bits: int) -> bool:
    return bool(bits % 8 and packed[-1] >> (bits % 8))


class Bitmap(Codec):
    """One bit an element and, for those sent, the sign and the value."""

    name = "bitmap"
    code = 2

    def size(self, rule: ThresholdRule, n: int, k: int) -> int:
        """n bits, k signs where values carry none, and the values."""
        signs = _bytes(k) if VALUE_FORMAT[rule].sign_apart else 0
        return _bytes(n) + signs + value_bytes(rule) * k

    def encode(self, update: SparseUpdate, body: Bytes) -> None:
        """See `Codec.encode`."""
        at = _bytes(update.n)
        sparse.write_bitmap(update.words, body[:at])
        if VALUE_FORMAT[update.rule].sign_apart:
            signs_end = at + _bytes(update.k)
            sparse.write_signs(update.words, body[at:signs_end])
            at = signs_end
        write_values(update, body[at:])

    def decode(self, body: Bytes, rule: ThresholdRule, n: int, k: int, tau: np.float32) -> SparseUpdate:
        """See `Codec.decode`."""
        at = _bytes(n)
        words = np.empty(k, np.uint32)
        found = sparse.read_bitmap(body[:at], words)
        if found != k:
            raise CorruptMessage(f"the bitmap holds {found} elements, the header says {k}")
        if _spare_bits_set(body[:at], n):
            raise CorruptMessage("bits after the bitmap's last element are set")
        if VALUE_FORMAT[rule].sign_apart:
            signs = body[at : at + _bytes(k)]
            if _spare_bits_set(signs, k):
                raise CorruptMessage("bits after the last sign are set")
            sparse.read_signs(signs, words)
            values = read_values(body[at + signs.size :], rule, words, tau)
        else:
            words |= np.signbit(body[at:].view("<f4")).astype(np.uint32)
            values = read_values(body[at:], rule, words, tau)
        return SparseUpdate(rule, n, tau, words, values)
