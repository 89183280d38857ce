"""packed32: one 32-bit word an element, 31 bits of position and the sign (Strom, section 2.5).

Positions: k words `position << 1 | sign`, little endian, ascending.
"""

from typing import Any

from ...ops.array import Bytes
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ..forms import Form
from ..update import Chunks, Update
from .base import ByCounts, Head, PositionCodec, words_of
from .body import need


class Packed32(ByCounts, PositionCodec):
    """4 bytes an element sent, and its value."""

    name = "packed32"
    code = 1
    turn = 0
    keeps_signs = True

    def fits_form(self, form: Form, chunks: Chunks | None) -> bool:
        """Any."""
        return True

    def bytes_of(self, form: Form, n: Any, k: Any, chunks: Chunks | None) -> Any:
        """4k."""
        return 4 * k

    def write(self, update: Update, payload: Payload, at: int, size: int, ops: CpuOps) -> None:
        """See `OneByOne.write`."""
        ops.copy_bytes(words_of(update), payload.array[at : at + size])

    def read_positions(self, body: Bytes, head: Head, ops: CpuOps) -> tuple[Any, int]:
        """See `PositionCodec.read_positions`."""
        used = 4 * head.k
        need(body, used, f"{head.k} words")
        words = ops.read_packed32(body[:used], head.n, head.k)
        return words, used
