"""raw: every element written out, zeros for those not sent; smallest when nearly all are sent.

Body: n elements, little endian: float32 (wgt), int8 -1, 0, 1 (bgt, strom), int16 -255 to 255 (qgt).
"""

from typing import Any

from ...errors import CorruptMessage
from ...ops.interface import Ops
from ...ops.returns import Steps, at_once
from ...ops.wire import Payload
from ..forms import FORMS, Form
from ..update import Update
from .base import Body, Head, OneByOne, Reading, words_of


class Raw(OneByOne):
    """The dense array."""

    name = "raw"
    code = 0
    turn = 3
    with_values = False

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is not None and FORMS[update.form].dense_dtype is not None

    def size(self, update: Update) -> int:
        """4n (wgt), n (bgt, strom) or 2n (qgt) bytes."""
        return _size(update.form, update.n)

    def write(self, update: Update, payload: Payload, at: int, size: int, ops: Ops) -> None:
        """See `OneByOne.write`."""
        form: Any = update.form
        ops.write_raw(form, words_of(update), update.values, payload.array[at : at + size])

    def read(self, body: Body, head: Head, reading: Reading) -> Steps[Update]:
        """See `OneByOne.read`."""
        form: Any = head.form
        if FORMS[head.form].dense_dtype is None or head.symbols != "raw" or body.size != _size(form, head.n):
            raise CorruptMessage(f"{body.size} bytes are not {head.n} elements of {head.form} written out")
        words, values = reading.ops.read_raw(form, body.array, head.n, head.k, reading.faults)
        if head.form == "wgt":
            reading.ops.check_wgt(words, values, float(head.tau), reading.faults)
        return at_once(Update(head.form, head.n, head.tau, words, values))


def _size(form: Form, n: int) -> int:
    dtype = FORMS[form].dense_dtype
    return 0 if dtype is None else dtype.itemsize * n
