"""bitmap: one bit for each of the n elements says whether it is sent.

Positions: ceil(n / 8) bytes, element 0 in the lowest bit of the first; where the form has signs apart
ceil(k / 8) bytes of them (1 is minus) in the same order. Spare bits are zero.
"""

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ...ops.cpu import sparse
from ..forms import FORMS, Form
from ..update import Update
from .base import Bytes, Head, PositionCodec, need


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _spare_bits_set(packed: Bytes, bits: int) -> bool:
    return bool(bits % 8 and packed[-1] >> (bits % 8))


def _sections(form: Form, n: int, k: int) -> tuple[int, int]:
    return _bytes(n), _bytes(k) if FORMS[form].sign_apart else 0


class Bitmap(PositionCodec):
    """One bit an element and, for those sent, the sign and the value."""

    name = "bitmap"
    code = 2

    def positions_size(self, update: Update) -> int:
        """n bits, and k signs where values carry none."""
        return sum(_sections(update.form, update.n, update.k))

    def write_positions(self, update: Update, section: Bytes) -> None:
        """See `PositionCodec.write_positions`."""
        at, signs = _sections(update.form, update.n, update.k)
        sparse.write_bitmap(update.words, section[:at])
        if signs:
            sparse.write_signs(update.words, section[at:])

    def read_positions(self, body: Bytes, head: Head) -> tuple[NDArray[np.uint32], int]:
        """See `PositionCodec.read_positions`."""
        at, signs = _sections(head.form, head.n, head.k)
        need(body, at + signs, f"a bitmap of {head.n} elements and {head.k} signs")
        words = np.empty(head.k, np.uint32)
        found = sparse.read_bitmap(body[:at], words)
        if found != head.k:
            raise CorruptMessage(f"the bitmap holds {found} elements, the header says {head.k}")
        if _spare_bits_set(body[:at], head.n):
            raise CorruptMessage("bits after the bitmap's last element are set")
        if signs:
            packed = body[at : at + signs]
            if _spare_bits_set(packed, head.k):
                raise CorruptMessage("bits after the last sign are set")
            sparse.read_signs(packed, words)
        return words, at + signs
