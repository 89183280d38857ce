"""Messages into updates on a device: what `wire.message` does on the CPU.

Headers and heads come to the host, in one copy for all messages each; bodies do not. What the kernels find
wrong, and the checksums, come last: nothing may be applied before `Decoded.check`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import CorruptMessage
from ..ops.cpu.bitpack import packed_bytes
from ..ops.cpu.chunked import index_bytes
from ..ops.cuda import bitpack, golomb_rice, huffman, positions, wire_values
from ..ops.cuda.copying import copy_bytes
from ..ops.cuda.crc32 import Checksums
from ..ops.cuda.faults import Faults
from ..ops.cuda.payloads import Found, peek
from ..ops.cuda.raw import read_raw
from ..ops.cuda.returns import Returns, Slot, Steps
from ..ops.cuda.runtime import Runtime
from ..ops.cuda.words import check_no_signs, join_signs
from ..wire.codecs import Codec
from ..wire.codecs.base import Bytes, Head
from ..wire.codecs.chunked import HEAD_BYTES as CHUNK_HEAD
from ..wire.codecs.chunked import read_chunk_head
from ..wire.codecs.values import LEVEL_BITS, QUANTIZER_HEAD, read_quantizer_head
from ..wire.forms import FORMS
from ..wire.message import HEADER_BYTES, WRONG_CHECKSUM, NonFinite, interpret, open_header
from ..wire.quantized import QUANTIZED, Quantiles, Quantized, ScaledFloats, Uniform
from ..wire.update import Chunks, Update

_NO_HEAD: Bytes = np.zeros(QUANTIZER_HEAD, np.uint8)


@dataclass(frozen=True)
class Placed:
    """A message in a payload."""

    payload: Any
    """uint8 on the device."""
    found: Found
    n: int
    """Elements that its update must have."""


@dataclass(frozen=True)
class Decoded:
    """What a message seems to hold."""

    update: Update | NonFinite
    """Not to be used before `check`."""
    faults: Faults
    remainder: Slot
    crc: int

    def check(self) -> None:
        """Raises CorruptMessage unless all of the message is good, once all slots were fetched."""
        if ~int(self.remainder.values[0]) & 0xFFFFFFFF != self.crc:
            raise CorruptMessage(WRONG_CHECKSUM)
        self.faults.check_fetched()


def decode(
    runtime: Runtime, checksums: Checksums, placed: Placed, looks: Returns, returns: Returns
) -> Steps[Decoded]:
    """Reads a message, as `wire.message.read`.

    Args:
        runtime: the device.
        checksums: of this device.
        placed: the message.
        looks: what the steps wait for.
        returns: to be fetched after the last step, before `Decoded.check`.

    Raises:
        CorruptMessage: a length, or a field of the header or of a head, is not valid.
    """
    found = placed.found
    message = placed.payload[found.begin : found.begin + HEADER_BYTES + found.length]
    header = open_header(found.header, found.length)
    opened = interpret(header, found.length, placed.n)
    faults, remainder = Faults(runtime, returns), returns.take(1, np.uint32)
    checksums.add(message, remainder.array)
    if isinstance(opened, NonFinite):
        return Decoded(opened, faults, remainder, header.crc)
    codec, head = opened
    body = _Body(runtime, message[HEADER_BYTES:], found.behind, head, faults, looks)
    update = yield from body.read(codec)
    return Decoded(update, faults, remainder, header.crc)


def _need(body: Any, size: int, what: str) -> None:
    if body.size < size:
        raise CorruptMessage(f"{body.size} bytes cannot hold {what}, which takes {size}")


class _Body:
    """The body of a message about to be read."""

    def __init__(
        self, runtime: Runtime, body: Any, behind: Bytes, head: Head, faults: Faults, looks: Returns
    ) -> None:
        self._runtime, self._body, self._behind = runtime, body, behind
        self._head, self._faults, self._looks = head, faults, looks

    def read(self, codec: Codec) -> Steps[Update]:
        """The update; what kernels find wrong stands in the faults then."""
        head = self._head
        if codec.name == "raw":
            return self._raw()
        if codec.name == "every":
            if head.k != head.n or head.n == 0 or FORMS[head.form].has_tau:
                raise CorruptMessage(f"{head.k} of {head.n} elements of {head.form} are not every element")
            values = yield from self._values(self._body, self._behind)
            return Update(head.form, head.n, head.tau, None, values)
        chunks = None
        if codec.name == "golomb_rice":
            words, used, quantizer = yield from self._golomb_rice()
        else:
            if codec.name == "packed32":
                words, used = self._packed32()
            elif codec.name == "bitmap":
                words, used = self._bitmap()
            else:
                chunks = self._chunks()
                words, used = self._chunked(chunks)
            quantizer = yield from self._quantizer_head(used)
        values = yield from self._values(self._body[used:], quantizer)
        self._settle_signs(words, values, keeps_signs=codec.name == "packed32")
        return Update(head.form, head.n, head.tau, words, values, chunks)

    def _raw(self) -> Update:
        head, dtype = self._head, FORMS[self._head.form].dense_dtype
        size = self._body.size
        if dtype is None or head.symbols != "raw" or size != dtype.itemsize * head.n:
            raise CorruptMessage(f"{size} bytes are not {head.n} elements of {head.form} written out")
        form: Any = head.form
        words, values = read_raw(self._runtime, form, self._body, head.n, head.k, self._faults)
        if head.form == "wgt":
            wire_values.check_wgt(self._runtime, words, values, float(head.tau), self._faults)
        return Update(head.form, head.n, head.tau, words, values)

    def _golomb_rice(self) -> Steps[tuple[Any, int, Bytes]]:
        head = self._head
        signed = FORMS[head.form].sign_apart
        section = golomb_rice.Section(self._runtime, self._body, head.n, head.k, signed, self._looks)
        if not head.k:
            return self._runtime.empty(0, np.uint32), 0, _NO_HEAD
        behind = self._looks.take(QUANTIZER_HEAD, np.uint8)
        peek(self._runtime, self._body, section.end, behind.array)
        yield
        used = section.used
        return section.read(self._faults), used, behind.values

    def _packed32(self) -> tuple[Any, int]:
        head, used = self._head, 4 * self._head.k
        _need(self._body, used, f"{head.k} words")
        section = self._body[:used]
        return positions.read_packed32(self._runtime, section, head.n, head.k, self._faults), used

    def _bitmap(self) -> tuple[Any, int]:
        head, signed = self._head, FORMS[self._head.form].sign_apart
        used = positions.bitmap_bytes(head.n, head.k, signed)
        _need(self._body, used, f"a bitmap of {head.n} elements and {head.k} signs")
        section = self._body[:used]
        return positions.read_bitmap(self._runtime, section, head.n, head.k, signed, self._faults), used

    def _chunks(self) -> Chunks:
        _need(self._body, CHUNK_HEAD, "the size of chunks")
        return read_chunk_head(self._behind[:CHUNK_HEAD], self._head)

    def _chunked(self, chunks: Chunks) -> tuple[Any, int]:
        n, used = self._head.n, CHUNK_HEAD + index_bytes(self._head.n, chunks.chunk, chunks.keep)
        _need(self._body, used, f"{self._head.k} indices in chunks of {chunks.chunk}")
        section = self._body[CHUNK_HEAD:used]
        words = positions.read_indices(self._runtime, section, n, chunks.chunk, chunks.keep, self._faults)
        return words, used

    def _settle_signs(self, words: Any, values: Any, *, keeps_signs: bool) -> None:
        """Gives words the signs that their form asks for, or checks those that they have."""
        head, runtime = self._head, self._runtime
        if head.form == "wgt":
            if not keeps_signs:
                join_signs(runtime, words, values)
            wire_values.check_wgt(runtime, words, values, float(head.tau), self._faults)
        elif keeps_signs and not FORMS[head.form].sign_apart:
            check_no_signs(runtime, words, self._faults)

    def _quantizer_head(self, at: int) -> Steps[Bytes]:
        """How quantized values from byte `at` on begin; nothing for other forms, or where it is missing."""
        if not FORMS[self._head.form].quantized or not self._head.k or self._body.size - at < QUANTIZER_HEAD:
            return _NO_HEAD
        slot = self._looks.take(QUANTIZER_HEAD, np.uint8)
        copy_bytes(self._runtime, self._body[at : at + QUANTIZER_HEAD], slot.array)
        yield
        return slot.values

    def _values(self, body: Any, quantizer: Bytes) -> Steps[Any]:
        """As `wire.codecs.values.read_values`; `quantizer` is how the body begins."""
        head, runtime, traits = self._head, self._runtime, FORMS[self._head.form]
        if head.symbols == "huffman" and (head.k == 0 or not traits.symbols):
            raise CorruptMessage(f"there are no symbols to decode in {head.k} values of {head.form}")
        if traits.quantized and head.k:
            return (yield from self._quantized(body, quantizer))
        if traits.symbols and head.k:
            levels = yield from self._symbols(body, LEVEL_BITS)
            wire_values.check_levels(runtime, levels, self._faults)
            return levels
        expected = 0 if head.form in ("bgt", "strom") else head.k * traits.dtype.itemsize
        if body.size != expected:
            raise CorruptMessage(f"{body.size} bytes of values, {head.k} of {head.form} take {expected}")
        values = self._copy(body, expected // traits.dtype.itemsize, traits.dtype)
        if head.form == "f32":
            wire_values.check_floats(runtime, values, self._faults)
        elif head.form == "fp16" or head.form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
            wire_values.check_halves(runtime, head.form, values, self._faults)
        return values

    def _copy(self, body: Any, count: int, dtype: Any) -> Any:
        """Elements that may begin at any byte."""
        values = self._runtime.empty(count, dtype)
        copy_bytes(self._runtime, body, values.view(np.uint8))
        return values

    def _quantized(self, body: Any, quantizer: Bytes) -> Steps[Quantized]:
        head = self._head
        if body.size < QUANTIZER_HEAD:
            raise CorruptMessage(f"{body.size} bytes are less than a quantizer's head: {QUANTIZER_HEAD}")
        bits, block = read_quantizer_head(quantizer, head.k)
        if head.form == "fp8" and bits != 8:
            raise CorruptMessage(f"an 8-bit float of {bits} bits")
        at, tables = QUANTIZER_HEAD, []
        for dtype, count in QUANTIZED[head.form].table_layout(bits, block, head.k):
            size = np.dtype(dtype).itemsize * count
            if body.size - at < size:
                raise CorruptMessage(
                    f"{body.size} bytes cannot hold the tables of {head.k} values in blocks of {block}"
                )
            tables.append(self._copy(body[at : at + size], count, np.dtype(dtype)))
            at += size
        symbols = yield from self._symbols(body[at:], bits)
        return self._checked(bits, block, symbols, tables)

    def _checked(self, bits: int, block: int, symbols: Any, tables: list[Any]) -> Quantized:
        """As `Quantized.from_tables`, which tables are valid being found out by kernels."""
        runtime, faults = self._runtime, self._faults
        if self._head.form == "linear":
            lows, steps = tables
            wire_values.check_linear_tables(runtime, bits, lows, steps, faults)
            return Uniform(bits, block, symbols, lows, steps)
        if self._head.form == "quantile":
            exponents, means = tables
            wire_values.check_quantile_tables(runtime, means, exponents, faults)
            return Quantiles(bits, block, symbols, means, exponents)
        (exponents,) = tables
        wire_values.check_fp8(runtime, symbols, exponents, faults)
        return ScaledFloats(bits, block, symbols, exponents)

    def _symbols(self, body: Any, bits: int) -> Steps[Any]:
        runtime, k = self._runtime, self._head.k
        if self._head.symbols == "raw":
            if body.size != packed_bytes(k, bits):
                raise CorruptMessage(f"{body.size} bytes do not hold {k} symbols of {bits} bits")
            return bitpack.unpack(runtime, body, bits, k, self._faults)
        slot = self._looks.take(huffman.head_bytes(int(body.size), bits, k), np.uint8)
        copy_bytes(runtime, body[: slot.array.size], slot.array)
        yield
        return huffman.decode_behind(runtime, body, slot.values, bits, k, self._faults)
