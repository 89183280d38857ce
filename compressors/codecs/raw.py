"""raw: every element written out, zeros for those not sent; smallest when nearly all are sent.

Body: n elements, little endian: float32 (wgt), int8 -1, 0, 1 (bgt), int16 -255 to 255 (qgt).
"""

import numpy as np

from ..errors import CorruptMessage
from ..kernels import sparse
from ..kernels.threshold import ThresholdRule
from ..update import VALUE_FORMAT, SparseUpdate
from .base import Bytes, Codec, aligned, read_values

_TOP = {"bgt": 1, "qgt": 255}


class Raw(Codec):
    """The dense array."""

    name = "raw"
    code = 0

    def size(self, rule: ThresholdRule, n: int, k: int) -> int:
        """4n (wgt), n (bgt) or 2n (qgt) bytes."""
        return VALUE_FORMAT[rule].dense_dtype.itemsize * n

    def encode(self, update: SparseUpdate, body: Bytes) -> None:
        """See `Codec.encode`."""
        dense = body.view(VALUE_FORMAT[update.rule].dense_dtype)
        positions = update.words >> 1
        if update.rule == "wgt":
            dense[positions] = update.values
        else:
            signs = 1 - 2 * (update.words & 1).astype(np.int16)
            levels = update.values.astype(np.int16) if update.rule == "qgt" else np.int16(1)
            dense[positions] = (signs * levels).astype(dense.dtype)

    def decode(self, body: Bytes, rule: ThresholdRule, n: int, k: int, tau: np.float32) -> SparseUpdate:
        """See `Codec.decode`."""
        dense = aligned(body, VALUE_FORMAT[rule].dense_dtype.str)
        # A float's bits have its sign and are 0 for 0.0 alone: a stray -0.0 counts, and is then refused.
        bits = dense.view("<i4") if rule == "wgt" else dense
        found = sparse.count_nonzero(bits)
        if found != k:
            raise CorruptMessage(f"the body holds {found} elements that are not zero, the header says {k}")
        words = np.empty(k, np.uint32)
        sparse.read_dense(bits, words)
        sent = dense[words >> 1]
        if rule == "wgt":
            return SparseUpdate(rule, n, tau, words, read_values(sent.view(np.uint8), rule, words, tau))
        magnitudes = np.abs(sent.astype(np.int32))
        if k and int(magnitudes.max()) > _TOP[rule]:
            raise CorruptMessage(f"a level of {int(magnitudes.max())} is more than {_TOP[rule]}")
        values = magnitudes.astype(np.uint8) if rule == "qgt" else np.empty(0, np.uint8)
        return SparseUpdate(rule, n, tau, words, values)
