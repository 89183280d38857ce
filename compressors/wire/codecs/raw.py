"""raw: every element written out, zeros for those not sent; smallest when nearly all are sent.

Body: n elements, little endian: float32 (wgt), int8 -1, 0, 1 (bgt, strom), int16 -255 to 255 (qgt).
"""

import numpy as np

from ...errors import CorruptMessage
from ...ops.cpu import sparse
from ..forms import FORMS
from ..update import Update
from .base import Bytes, Codec, Head, aligned
from .values import PlannedValues, SizedValues

_TOP = {"bgt": 1, "strom": 1, "qgt": 255}


class Raw(Codec):
    """The dense array."""

    name = "raw"
    code = 0

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is not None and FORMS[update.form].dense_dtype is not None

    def size(self, update: Update, values: SizedValues) -> int:
        """4n (wgt), n (bgt, strom) or 2n (qgt) bytes."""
        dtype = FORMS[update.form].dense_dtype
        assert dtype is not None
        return dtype.itemsize * update.n

    def encode(self, update: Update, values: PlannedValues, body: Bytes) -> None:
        """See `Codec.encode`."""
        dtype = FORMS[update.form].dense_dtype
        assert dtype is not None
        dense = body.view(dtype)
        assert update.words is not None
        assert isinstance(update.values, np.ndarray)
        positions = update.words >> 1
        if update.form == "wgt":
            dense[positions] = update.values
        else:
            signs = 1 - 2 * (update.words & 1).astype(np.int16)
            levels = update.values.astype(np.int16) if update.form == "qgt" else np.int16(1)
            dense[positions] = (signs * levels).astype(dense.dtype)

    def decode(self, body: Bytes, head: Head) -> Update:
        """See `Codec.decode`."""
        dtype = FORMS[head.form].dense_dtype
        if dtype is None or head.symbols != "raw" or body.size != dtype.itemsize * head.n:
            raise CorruptMessage(f"{body.size} bytes are not {head.n} elements of {head.form} written out")
        dense = aligned(body, dtype.str)
        # A float's bits have its sign and are 0 for 0.0 alone: a stray -0.0 counts, and is then refused.
        bits = dense.view("<i4") if head.form == "wgt" else dense
        found = sparse.count_nonzero(bits)
        if found != head.k:
            raise CorruptMessage(
                f"the body holds {found} elements that are not zero, the header says {head.k}"
            )
        words = np.empty(head.k, np.uint32)
        sparse.read_dense(bits, words)
        sent = dense[words >> 1]
        if head.form == "wgt":
            return Update(head.form, head.n, head.tau, words, sent)
        magnitudes = np.abs(sent.astype(np.int32))
        if head.k and int(magnitudes.max()) > _TOP[head.form]:
            raise CorruptMessage(f"a level of {int(magnitudes.max())} is more than {_TOP[head.form]}")
        values = magnitudes.astype(np.uint8) if head.form == "qgt" else np.empty(0, np.uint8)
        return Update(head.form, head.n, head.tau, words, values)
