"""bitmap: one bit for each of the n elements says whether it is sent.

Positions: ceil(n / 8) bytes, element 0 in the lowest bit of the first; where the form has signs apart
ceil(k / 8) bytes of them (1 is minus) in the same order. Spare bits are zero.
"""

from typing import Any

from ...ops.array import Bytes
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ..forms import FORMS, Form
from ..update import Chunks, Update
from .base import ByCounts, Head, PositionCodec, words_of
from .body import need


class Bitmap(ByCounts, PositionCodec):
    """One bit an element and, for those sent, the sign and the value."""

    name = "bitmap"
    code = 2
    turn = 2

    def fits_form(self, form: Form, chunks: Chunks | None) -> bool:
        """Any."""
        return True

    def bytes_of(self, form: Form, n: Any, k: Any, chunks: Chunks | None) -> Any:
        """n bits, and k signs where values carry none."""
        return (n + 7) // 8 + ((k + 7) // 8 if FORMS[form].sign_apart else 0)

    def write(self, update: Update, payload: Payload, at: int, size: int, ops: CpuOps) -> None:
        """See `OneByOne.write`."""
        signed, out = FORMS[update.form].sign_apart, payload.array[at : at + size]
        ops.write_bitmap(words_of(update), update.n, signed, out)

    def read_positions(self, body: Bytes, head: Head, ops: CpuOps) -> tuple[Any, int]:
        """See `PositionCodec.read_positions`."""
        used, signed = self.bytes_of(head.form, head.n, head.k, None), FORMS[head.form].sign_apart
        need(body, used, f"a bitmap of {head.n} elements and {head.k} signs")
        words = ops.read_bitmap(body[:used], head.n, head.k, signed)
        return words, used
