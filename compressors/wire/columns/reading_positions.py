"""Reads the positions of all updates of a bucket: all that one codec wrote in one call."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.array import Bytes
from ...ops.cpu import byte_rows, golomb_rice_sections, sparse
from ...ops.cpu.golomb_rice import read_only
from ...ops.cpu.ops import CPU
from ...ops.offsets import Numbers
from ..codecs.base import Head, PositionCodec
from ..codecs.chunked import Chunked, read_chunks
from ..codecs.golomb_rice import GolombRice
from ..codecs.packed32 import Packed32
from ..codecs.registry import codec_by_code
from ..forms import FORMS, Form
from ..update import NO_TAU, Chunks
from .odd import Odd, must
from .words import Words


def read_positions(
    form: Form, n: Numbers, said: NDArray[Any], payload: Bytes, bodies: Numbers, ends: Numbers
) -> tuple[Words, Numbers, Chunks | None]:
    """The words of some messages.

    Args:
        form: of all.
        n: int64 [m], elements of each.
        said: HEADER [m], their headers.
        payload: uint8, untrusted.
        bodies: int64 [m], where each body begins.
        ends: int64 [m], where it ends.

    Returns:
        The words, where the values begin, int64 [m], and what positions are regular in, if all are.

    Raises:
        Odd: they are to be read one by one.
        CorruptMessage: likewise.
    """
    must(form != "wgt")  # whose words need their values
    golomb, packed = said["codec"] == GolombRice.code, said["codec"] == Packed32.code
    counts, signed = said["k"].astype(np.int64), FORMS[form].sign_apart
    must(bool((counts <= 8 * (ends - bodies)).all()))  # a word takes a bit at least: no room for more
    word_ends = np.cumsum(counts)
    words, behind, firsts = np.empty(int(word_ends[-1]), np.uint32), bodies.copy(), word_ends - counts
    found: set[Chunks | None] = set()
    for i in np.flatnonzero(~(golomb | packed)).tolist():
        head = Head(form, int(n[i]), int(counts[i]), NO_TAU, "raw")
        own, used, chunks = _by_itself(int(said["codec"][i]), payload[bodies[i] : ends[i]], head)
        words[firsts[i] : word_ends[i]] = own
        behind[i] += used
        found.add(chunks)
    if golomb.any():
        found.add(None)
        table = np.stack((bodies, ends - bodies, n, counts, counts), axis=1)[golomb]
        read = words if golomb.all() else np.empty(int(counts[golomb].sum()), np.uint32)
        must(golomb_rice_sections.read_sections(read_only(payload), table, int(signed), read) == len(table))
        behind[golomb] += table[:, 4]
        if read is not words:
            sizes = 4 * counts[golomb]
            into = words.view(np.uint8)
            byte_rows.copy_rows(
                read.view(np.uint8), np.cumsum(sizes) - sizes, sizes, into, 4 * firsts[golomb]
            )
    if packed.any():
        found.add(None)
        must(bool((4 * counts <= ends - bodies)[packed].all()))
        sizes = 4 * counts[packed]
        byte_rows.copy_rows(payload, bodies[packed], sizes, words.view(np.uint8), 4 * firsts[packed])
        behind[packed] += sizes
        must(sparse.check_each_ascending(words, firsts[packed], counts[packed], n[packed], not signed))
    must(len(found) == 1)
    return Words(words, word_ends), behind, found.pop()


def _by_itself(code: int, body: Bytes, head: Head) -> tuple[Any, int, Chunks | None]:
    """The words that a codec reads from one body, their bytes, and what they are regular in."""
    codec = codec_by_code(code)
    if not isinstance(codec, PositionCodec) or codec.keeps_signs:
        raise Odd
    chunks = read_chunks(body, head) if isinstance(codec, Chunked) else None
    words, used = codec.read_positions(body, head, CPU)
    return words, used, chunks
