"""chunked: short indices within chunks, a fixed number from each (SparseLoCo, arXiv 2508.15706).

Positions: u32 chunk, u32 keep; then for each chunk of `chunk` elements its min(keep, length) indices,
ascending, in log2(chunk) bits each, lowest bit first; spare bits are zero. 12 bits for chunks of 4096.
"""

import struct
from typing import Any

from ...errors import CorruptMessage
from ...ops.array import Bytes
from ...ops.cpu.chunked import index_bytes
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ..forms import FORMS, Form
from ..update import Chunks, Update
from .base import ByCounts, Head, PositionCodec, words_of
from .body import need

_HEAD = struct.Struct("<II")


class Chunked(ByCounts, PositionCodec):
    """log2(chunk) bits an element sent, and its value; for forms whose signs are not apart."""

    name = "chunked"
    code = 5
    turn = 4

    def fits_form(self, form: Form, chunks: Chunks | None) -> bool:
        """Those whose values have the sign, in chunks."""
        return chunks is not None and not FORMS[form].sign_apart

    def bytes_of(self, form: Form, n: Any, k: Any, chunks: Chunks | None) -> Any:
        """8 bytes and the indices."""
        assert chunks is not None
        return _HEAD.size + index_bytes(n, chunks.chunk, chunks.keep)

    def write(self, update: Update, payload: Payload, at: int, size: int, ops: CpuOps) -> None:
        """See `OneByOne.write`."""
        chunks, out = _chunks_of(update), payload.array[at + _HEAD.size : at + size]
        payload.put(_HEAD.pack(chunks.chunk, chunks.keep), at)
        ops.write_indices(words_of(update), update.n, chunks.chunk, chunks.keep, out)

    def read(self, body: Bytes, head: Head, ops: CpuOps) -> Update:
        """See `OneByOne.read`."""
        update = super().read(body, head, ops)
        update.chunks = read_chunks(body, head)
        return update

    def read_positions(self, body: Bytes, head: Head, ops: CpuOps) -> tuple[Any, int]:
        """See `PositionCodec.read_positions`."""
        chunks = read_chunks(body, head)
        n, chunk, keep = head.n, chunks.chunk, chunks.keep
        used = _HEAD.size + index_bytes(n, chunk, keep)
        need(body, used, f"{head.k} indices in chunks of {chunk}")
        section = body[_HEAD.size : used]
        return ops.read_indices(section, n, chunk, keep), used


def read_chunks(body: Bytes, head: Head) -> Chunks:
    """What a body says of its chunks; raises CorruptMessage if they are not those of the header."""
    need(body, _HEAD.size, "the size of chunks")
    if FORMS[head.form].sign_apart:
        raise CorruptMessage(f"chunked positions have no signs, {head.form} needs them")
    chunk, keep = _HEAD.unpack_from(body.data)
    if not 2 <= chunk <= 65536 or chunk & (chunk - 1) or not 1 <= keep <= chunk:
        raise CorruptMessage(f"{keep} elements of each chunk of {chunk}")
    chunks = Chunks(chunk, keep)
    if chunks.count(head.n) != head.k:
        raise CorruptMessage(f"{keep} of every {chunk} of {head.n} elements are not {head.k}")
    return chunks


def _chunks_of(update: Update) -> Chunks:
    assert update.chunks is not None
    return update.chunks
