"""The codecs of positions (docs/reference/messages.md), by name and by code."""

import struct
from typing import ClassVar

import numpy as np

from ..errors import CorruptMessage
from ..ops.array import Array, Bytes, Numbers, Words, aligned, host, readonly, symbol_type
from ..ops.cpu import bitpack, golomb_rice
from ..ops.cpu.bitpack import pack, packed_bytes, unpack
from ..ops.cpu.bits import Section, any_has
from ..ops.interface import LARGEST_CHUNK
from ..ops.uniform import positions_of
from .codec import Codec, Head, bit_bytes, need, read_bits, write_bits
from .forms import FORMS
from .update import Chunks, Segments, Update

_UNSIGNED = np.uint32(0xFFFFFFFE)


class Packed32(Codec):
    """One 32-bit word an element, 31 bits of position and the sign (Strom, section 2.5)."""

    name = "packed32"
    code = 1

    def measure(self, update: Update, threads: int) -> Section:
        """See `Codec.measure`: 4k bytes."""
        words = host(update.words)

        def write(out: Bytes) -> None:
            signed = FORMS[update.form].has_tau
            out[:] = (words if signed else words & _UNSIGNED).view(np.uint8)

        return Section(words.nbytes, write)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        used = 4 * head.k
        need(body, used, f"positions: {head.k} words")
        words = aligned(body[:used], "<u4")
        positions = words >> 1
        if (positions[1:] <= positions[:-1]).any() or (positions[-1:] >= head.n).any():
            raise CorruptMessage(f"positions do not ascend, or pass the last one of {head.n}")
        if not head.signed and (words & 1).any():
            raise CorruptMessage(f"positions have signs, which {head.form} has in its values")
        return words, used


class GolombRice(Codec):
    """About 1% more than the entropy of independent positions, and a sign where values carry none."""

    name = "golomb_rice"
    code = 3

    def measure(self, update: Update, threads: int) -> Section:
        return golomb_rice.plan(host(update.words), FORMS[update.form].has_tau, threads)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        return golomb_rice.read(body, head.n, head.k, head.signed, threads)


class Bitmap(Codec):
    """A bit for each of the n elements, whether it is sent; then a sign of each, where values carry none."""

    name = "bitmap"
    code = 2

    def measure(self, update: Update, threads: int) -> Section:
        words, split, signed = host(update.words), bit_bytes(update.n), FORMS[update.form].has_tau

        def write(out: Bytes) -> None:
            sent = np.zeros(update.n, np.bool_)
            sent[words >> 1] = True
            out[:split] = write_bits(sent)
            if signed:
                out[split:] = write_bits(words & 1)

        return Section(split + (bit_bytes(words.size) if signed else 0), write)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        used = bit_bytes(head.n)
        positions = np.flatnonzero(read_bits(body, head.n, "elements"))
        if positions.size != head.k:
            raise CorruptMessage(f"positions: the bitmap has not {head.k} bits set")
        words = positions.astype(np.uint32) << np.uint32(1)
        if head.signed:
            words |= read_bits(body[used:], head.k, "signs")
            used += bit_bytes(head.k)
        return words, used


class Raw(Codec):
    """Every element written out, zeros for those not sent; the smallest when nearly all are sent."""

    name = "raw"
    code = 0
    with_values = True
    _top: ClassVar = {"bgt": 1, "strom": 1, "qgt": 255}

    def measure(self, update: Update, threads: int) -> Section | None:
        """See `Codec.measure`; a value that is zero would look like none."""
        dtype = FORMS[update.form].dense_dtype
        values, words = host(update.values), host(update.words)
        if dtype is None or (update.form == "f32" and np.count_nonzero(values) < values.size):
            return None

        def write(out: Bytes) -> None:
            dense, positions = np.zeros(update.n, dtype), words >> 1
            if update.form == "f32":
                dense[positions] = values
            else:
                levels = values.astype(np.int16) if update.form == "qgt" else np.int16(1)
                dense[positions] = ((1 - 2 * (words & 1).astype(np.int16)) * levels).astype(dtype)
            out[:] = dense.view(np.uint8)

        return Section(dtype.itemsize * update.n, write)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        dtype = FORMS[head.form].dense_dtype
        if dtype is None:
            raise CorruptMessage(f"{head.form} is never written out as raw")
        used = dtype.itemsize * head.n
        need(body, used, f"{head.n} elements of {head.form} written out")
        dense = aligned(body[:used], dtype)
        # A float's bits have its sign and are 0 for 0.0 alone: a stray -0.0 counts, and is then refused.
        bits = dense.view("<i4") if head.form == "f32" else dense
        positions = np.flatnonzero(bits)
        if positions.size != head.k:
            raise CorruptMessage(f"raw: not {head.k} elements differ from 0")
        words = positions.astype(np.uint32) << np.uint32(1)
        return words | (bits[positions] < 0) if head.signed else words, used

    def values(self, section: Bytes, head: Head, words: Words) -> Array:
        sent = aligned(section, FORMS[head.form].dense_dtype)[words >> 1]
        if head.form == "f32":
            bits = sent.view(np.uint32)
            if any_has(bits, np.uint32(0x7F800000)) or (bits == 0x80000000).any():
                raise CorruptMessage("raw: a value is not finite, or -0.0")
            floats: Array = sent
            return floats
        magnitudes = np.abs(sent.astype(np.int32))
        if words.size and int(magnitudes.max()) > self._top[head.form]:
            raise CorruptMessage(f"raw: a level is more than {head.form} has")
        levels: Array = magnitudes.astype(np.uint8)[: words.size if head.form == "qgt" else 0]
        return levels


class Chunked(Codec):
    """Short indices within chunks, a fixed number from each (SparseLoCo, arXiv 2508.15706)."""

    name = "chunked"
    code = 5
    _sizes = struct.Struct("<II")

    def measure(self, update: Update, threads: int) -> Section | None:
        chunks, segments, counts = update.chunks, update.segments, update.counts
        if chunks is None or FORMS[update.form].has_tau:
            return None
        if (counts != np.where(counts > 0, chunks.count(segments.sizes), 0)).any():
            return None
        begin, bits = self._sizes.size + bit_bytes(len(segments)), chunks.chunk.bit_length() - 1

        def write(out: Bytes) -> None:
            self._sizes.pack_into(out.data, 0, chunks.chunk, chunks.keep)
            out[self._sizes.size : begin] = write_bits(counts > 0)
            indices = np.empty(update.k, symbol_type(bits))
            given = np.cumsum(counts), segments.firsts, chunks.chunk
            bitpack.write_indices(readonly(host(update.words)), *given, indices)
            pack(indices, bits, out[begin:], threads=threads)

        return Section(begin + int(packed_bytes(update.k, bits)), write)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        need(body, self._sizes.size, "the size of chunks")
        if head.signed:
            raise CorruptMessage(f"chunked positions have no signs, {head.form} needs them")
        chunk, keep = self._sizes.unpack_from(body.data)
        if not 2 <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1) or not 1 <= keep <= chunk:
            raise CorruptMessage(f"positions: {keep} elements of each chunk of {chunk}")
        sent = read_bits(body[self._sizes.size :], len(head.segments), "parameters")
        firsts, sizes = head.segments.firsts[sent], head.segments.sizes[sent]
        if int(Chunks(chunk, keep).count(sizes).sum()) != head.k:
            raise CorruptMessage(f"positions: {keep} of every {chunk} are not {head.k}")
        begin, bits = self._sizes.size + bit_bytes(len(head.segments)), chunk.bit_length() - 1
        used = begin + int(packed_bytes(head.k, bits))
        need(body, used, f"positions: {head.k} indices in chunks of {chunk}")
        indices, words = unpack(body[begin:used], bits, head.k, threads), np.empty(head.k, np.uint32)
        if not bitpack.read_indices(indices, firsts, sizes, chunk, keep, words):
            raise CorruptMessage("positions: packed indices do not ascend within their chunks")
        return words, used


class Drawn(Codec):
    """A key and a count for each parameter, from which the reader draws the same positions at random."""

    name = "drawn"
    code = 6

    def measure(self, update: Update, threads: int) -> Section | None:
        keys, counts = update.keys, update.counts
        if keys is None or FORMS[update.form].has_tau:
            return None
        columns = np.concatenate([counts.astype("<u4"), keys.astype("<u4")]).view(np.uint8)

        def write(out: Bytes) -> None:
            out[:] = columns

        return Section(columns.size, write)

    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        if head.signed:
            raise CorruptMessage(f"drawn positions have no signs, {head.form} needs them")
        segments, used = head.segments, 8 * len(head.segments)
        need(body, used, "the keys of positions")
        counts, keys = aligned(body[:used], "<u4").reshape(2, -1)
        if (counts > segments.sizes).any() or int(counts.sum(dtype=np.int64)) != head.k:
            raise CorruptMessage(f"positions: parameters do not send {head.k} elements")
        counts = counts.astype(np.int64)
        positions = np.repeat(segments.firsts, counts) + positions_of(segments.sizes, counts, keys)
        return positions.astype(np.uint32) << np.uint32(1), used


BUILTIN: tuple[Codec, ...] = Packed32(), GolombRice(), Bitmap(), Raw(), Chunked(), Drawn()
"""The codecs that `auto` chooses from; of several with equally short output, it takes the first."""
DENSE = 4
"""The code of updates without positions, whose parameters are sent whole, or not at all."""
_BY_CODE = {codec.code: codec for codec in BUILTIN}


def codec_by_code(code: int) -> Codec:
    """The codec whose code a message carries; CorruptMessage if none has it."""
    if code not in _BY_CODE:
        raise CorruptMessage(f"codec {code} is unknown; known are {sorted([DENSE, *_BY_CODE])}")
    return _BY_CODE[code]


def dense_section(update: Update) -> Section:
    """What stands for the positions of an update without any."""
    if update.k == update.n:
        return Section(0, lambda _: None)

    def write(out: Bytes) -> None:
        out[:] = write_bits(update.counts > 0)

    return Section(bit_bytes(len(update.segments)), write)


def read_dense(body: Bytes, segments: Segments, k: int) -> tuple[Numbers, int]:
    """How many elements of each parameter are sent, int64 [m], and bytes of the section."""
    if k == segments.n:
        return segments.sizes, 0
    counts = np.where(read_bits(body, len(segments), "parameters"), segments.sizes, 0)
    if int(counts.sum()) != k:
        raise CorruptMessage(f"the parameters that are sent whole have not {k} elements")
    return counts, bit_bytes(len(segments))
