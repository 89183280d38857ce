"""raw: every element written out, zeros for those not sent; smallest when nearly all are sent.

Body: n elements, little endian: float32 (wgt), int8 -1, 0, 1 (bgt, strom), int16 -255 to 255 (qgt).
"""

from typing import Any

from ...errors import CorruptMessage
from ...ops.array import Bytes
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ..forms import FORMS, Form
from ..update import Chunks, Update
from .base import ByCounts, Head, words_of


class Raw(ByCounts):
    """The dense array."""

    name = "raw"
    code = 0
    turn = 3
    with_values = False

    def fits_form(self, form: Form, chunks: Chunks | None) -> bool:
        """Those of a threshold."""
        return FORMS[form].dense_dtype is not None

    def bytes_of(self, form: Form, n: Any, k: Any, chunks: Chunks | None) -> Any:
        """4n (wgt), n (bgt, strom) or 2n (qgt)."""
        dtype = FORMS[form].dense_dtype
        assert dtype is not None
        return dtype.itemsize * n

    def write(self, update: Update, payload: Payload, at: int, size: int, ops: CpuOps) -> None:
        """See `OneByOne.write`."""
        form: Any = update.form
        values: Any = update.values
        ops.write_raw(form, words_of(update), values, payload.array[at : at + size])

    def read(self, body: Bytes, head: Head, ops: CpuOps) -> Update:
        """See `OneByOne.read`."""
        form: Any = head.form
        fits = self.fits_form(form, None) and head.symbols == "raw"
        if not fits or body.size != self.bytes_of(form, head.n, head.k, None):
            raise CorruptMessage(f"{body.size} bytes are not {head.n} elements of {head.form} written out")
        words, values = ops.read_raw(form, body, head.n, head.k)
        if head.form == "wgt":
            ops.check_wgt(words, values, float(head.tau))
        return Update(head.form, head.n, head.tau, words, values)
