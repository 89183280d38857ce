"""varint: the difference of each word to the one before, 7 bits a byte (LEB128, as protocol buffers have it).

The highest bit of a byte says that more of the same number follow, lowest bits first. A word is
position << 1 | sign, and words ascend.
"""

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.array import Bytes, host
from taugrad.compressors.wire.codec import Codec, Head, Section, Words
from taugrad.compressors.wire.forms import FORMS
from taugrad.compressors.wire.update import Update

MOST = 5
"""Bytes of a number: a word has 32 bits."""


class Varint(Codec):
    """One byte for a gap of up to 63 elements, two for up to 8191."""

    name = "varint"
    code = 200

    def measure(self, update: Update, threads: int) -> Section:
        """See `Codec.measure`."""
        words = host(update.words)
        signs = words & 1 if FORMS[update.form].has_tau else 0  # elsewhere the lowest bit means nothing
        section = np.frombuffer(encode(words >> 1 << 1 | signs), np.uint8)

        def write(out: Bytes) -> None:
            out[:] = section

        return Section(section.size, write)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        """See `Codec.read`."""
        words, used = decode(body, head.n, head.k)
        if not head.signed and (words & 1).any():
            raise CorruptMessage("positions have signs where values have them")
        return words, used


def encode(words: NDArray[np.uint32]) -> bytes:
    """The section of ascending words, uint32 [k]."""
    rest = words.astype(np.int64)
    rest[1:] -= rest[:-1].copy()
    columns = np.zeros((words.size, MOST), np.uint8)
    lengths = np.ones(words.size, np.int64)
    for byte in range(MOST):
        more = rest >= 1 << 7
        columns[:, byte] = (rest & 0x7F) | (more << 7)
        lengths += more
        rest >>= 7
    return columns[np.arange(MOST) < lengths[:, None]].tobytes()


def decode(body: NDArray[np.uint8], n: int, k: int) -> tuple[NDArray[np.uint32], int]:
    """The words of a section, and how many bytes it has.

    Args:
        body: uint8, the section and whatever stands behind it.
        n: elements; positions are below.
        k: words.

    Raises:
        CorruptMessage: it is no section that `encode` wrote.
    """
    ends = np.flatnonzero(body[: MOST * k] < 1 << 7)[:k] + 1
    if ends.size < k:
        raise CorruptMessage(f"{body.size} bytes do not hold {k} numbers")
    lengths = np.diff(ends, prepend=0)
    if k and (lengths.max() > MOST or (body[ends - 1][lengths > 1] == 0).any()):
        raise CorruptMessage("a number has more bytes than it needs")
    used = int(ends[-1]) if k else 0
    place = np.arange(used) - np.repeat(ends - lengths, lengths)
    bits = (body[:used].astype(np.int64) & 0x7F) << (7 * place)
    words = np.cumsum(np.add.reduceat(bits, ends - lengths)) if k else np.empty(0, np.int64)
    if k and (words[-1] >= 2 * n or (np.diff(words >> 1) <= 0).any()):
        raise CorruptMessage(f"positions do not ascend, or reach {n}")
    return words.astype(np.uint32), used
