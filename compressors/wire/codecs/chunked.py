"""chunked: short indices within chunks, a fixed number from each (SparseLoCo, arXiv 2508.15706).

Positions: u32 chunk, u32 keep; then for each chunk of `chunk` elements its min(keep, length) indices,
ascending, in log2(chunk) bits each, lowest bit first; spare bits are zero. 12 bits for chunks of 4096.
"""

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ...ops.cpu import chunked
from ..forms import FORMS
from ..update import Chunks, Update
from .base import Bytes, Head, PositionCodec, aligned, need

HEAD_BYTES = 8
"""Bytes that the section begins with."""


class Chunked(PositionCodec):
    """log2(chunk) bits an element sent, and its value; for forms whose signs are not apart."""

    name = "chunked"
    code = 5

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.chunks is not None and not FORMS[update.form].sign_apart

    def positions_size(self, update: Update) -> int:
        """8 bytes and the indices."""
        chunks = update.chunks
        assert chunks is not None
        return HEAD_BYTES + chunked.index_bytes(update.n, chunks.chunk, chunks.keep)

    def write_positions(self, update: Update, section: Bytes) -> None:
        """See `PositionCodec.write_positions`."""
        chunks = update.chunks
        assert chunks is not None
        assert update.words is not None
        section[:HEAD_BYTES] = chunk_head(chunks)
        chunked.write_indices(update.words, update.n, chunks.chunk, chunks.keep, section[HEAD_BYTES:])

    def read_positions(self, body: Bytes, head: Head) -> tuple[NDArray[np.uint32], int]:
        """See `PositionCodec.read_positions`."""
        need(body, HEAD_BYTES, "the size of chunks")
        chunks = read_chunk_head(body[:HEAD_BYTES], head)
        used = HEAD_BYTES + chunked.index_bytes(head.n, chunks.chunk, chunks.keep)
        need(body, used, f"{head.k} indices in chunks of {chunks.chunk}")
        return chunked.read_indices(body[HEAD_BYTES:used], head.n, chunks.chunk, chunks.keep), used

    def decode(self, body: Bytes, head: Head) -> Update:
        """See `Codec.decode`."""
        update = super().decode(body, head)
        chunks = read_chunk_head(body[:HEAD_BYTES], head)
        return Update(update.form, update.n, update.tau, update.words, update.values, chunks)


def chunk_head(chunks: Chunks) -> Bytes:
    """How the section begins; uint8 [HEAD_BYTES]."""
    return np.array([chunks.chunk, chunks.keep], "<u4").view(np.uint8)


def read_chunk_head(bytes_of: Bytes, head: Head) -> Chunks:
    """The chunks that a section says it has; raises CorruptMessage if they do not make k elements."""
    if FORMS[head.form].sign_apart:
        raise CorruptMessage(f"chunked positions have no signs, {head.form} needs them")
    chunk, keep = (int(field) for field in aligned(bytes_of, "<u4"))
    if not 2 <= chunk <= 65536 or chunk & (chunk - 1) or not 1 <= keep <= chunk:
        raise CorruptMessage(f"{keep} elements of each chunk of {chunk}")
    chunks = Chunks(chunk, keep)
    if chunks.count(head.n) != head.k:
        raise CorruptMessage(f"{keep} of every {chunk} of {head.n} elements are not {head.k}")
    return chunks
