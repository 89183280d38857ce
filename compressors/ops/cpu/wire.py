"""Writing messages, and reading them; readers raise at once for what is wrong.

Legend: n elements, k of them sent, whose words are position << 1 | sign, uint32 [k], positions ascending.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes, aligned
from ..faults import fault
from ..results import HalfFormat, ThresholdRule
from . import bitpack, chunked, golomb_rice_sections, huffman, linear, minifloat, quantile, sparse

Words = NDArray[np.uint32]
_HEADER, _CRC_AT, _LENGTH = 32, 28, struct.Struct("<20xQ")
_CRC = struct.Struct("<I")
_DENSE = {"wgt": "<f4", "bgt": "i1", "qgt": "<i2", "strom": "i1"}
_TOP = {"bgt": 1, "strom": 1, "qgt": 255}
_EXPONENT_BITS = {"fp16": 0x7C00, "bf16": 0x7F80}
_NO_VALUES = np.empty(0, np.uint8)


class RiceBody(NamedTuple):
    """A body that begins with Golomb-Rice coded positions."""

    body: Bytes
    """Of one message."""
    n: int
    k: int


@dataclass(frozen=True)
class HuffmanCoded:
    """Symbols that are ready to be written as Huffman codes."""

    plan: huffman.HuffmanPlan
    symbols: NDArray[Any]
    threads: int

    @property
    def size(self) -> int:
        """Bytes of the section, exactly."""
        return self.plan.size


class Payload:
    """Messages under way to one array."""

    array: Bytes
    """Zeros at first."""

    def __init__(self, size: int) -> None:
        """So many bytes."""
        self.array = np.zeros(size, np.uint8)
        self._bytes = self.array.data

    def put(self, data: Bytes | bytes, at: int) -> None:
        """Writes the host's bytes from byte `at` on."""
        self._bytes[at : at + len(data)] = data if isinstance(data, bytes) else data.data

    def write_huffman(self, coded: HuffmanCoded, at: int) -> None:
        """Writes what `Ops.plan_huffman` planned from byte `at` on."""
        huffman.encode(coded.plan, coded.symbols, self.array[at : at + coded.size], coded.threads)

    def seal(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """Ends the writing: puts the CRC-32 of each message into its header, at byte 28."""
        for start, end in zip(starts, ends, strict=True):
            _CRC.pack_into(self._bytes, start + _CRC_AT, zlib.crc32(self._bytes[start:end]))


def check_crc(message: Bytes, crc: int) -> None:
    """Raises CorruptMessage unless a message has this checksum, whose own place counts as zeros."""
    whole = message.data
    head = zlib.crc32(bytes(whole[:_CRC_AT]) + bytes(4))
    if zlib.crc32(whole[_HEADER:], head) != crc:
        raise CorruptMessage("the checksum does not match")


def find_messages(payload: Bytes, most: int) -> list[Bytes]:
    """Cuts a payload into messages by the lengths in their headers.

    Args:
        payload: uint8.
        most: how many messages it may have.

    Raises:
        CorruptMessage: it cannot be cut so.
    """
    found: list[Bytes] = []
    at, size = 0, payload.size
    while at < size:
        if size - at < _HEADER:
            raise CorruptMessage("bytes are left that are less than a header")
        (length,) = _LENGTH.unpack_from(payload.data, at)
        end = at + _HEADER + length
        if end > size:
            raise CorruptMessage("a header says that its body is longer than what is there")
        if len(found) == most:
            raise CorruptMessage("there are more messages than there can be")
        found.append(payload[at:end])
        at = end
    return found


def _spare_bits_set(packed: Bytes, bits: int) -> bool:
    return bool(bits % 8 and packed[-1] >> (bits % 8))


class CpuWire:
    """See the module's text."""

    threads: int

    # Writing

    def payload(self, size: int) -> Payload:
        """Room for messages of so many bytes together."""
        return Payload(size)

    def copy_bytes(self, source: NDArray[Any], out: Bytes) -> None:
        """Copies an array's bytes to uint8, at any address."""
        out[:] = source.view(np.uint8)

    def measure_golomb_rice(self, words: Sequence[Words], signed: bool) -> golomb_rice_sections.Sections:
        """Finds the block length that makes each section of words the shortest.

        Raises:
            ValueError: positions do not ascend.
        """
        return golomb_rice_sections.measured(words, signed)

    def plan_huffman(self, symbols: NDArray[Any], bits: int, below: int | None) -> HuffmanCoded | None:
        """Builds a code for symbols; None if it cannot be shorter than `below` bytes, where that is given."""
        plan = huffman.plan(symbols, bits, self.threads)
        shorter = below is None or plan.size < below
        return HuffmanCoded(plan, symbols, self.threads) if shorter else None

    def pack(self, symbols: NDArray[Any], bits: int, out: Bytes) -> None:
        """Writes symbols of 1 to 16 bits side by side to uint8 [packed_bytes(k, bits)]."""
        bitpack.pack(symbols, bits, out, self.threads)

    def write_bitmap(self, words: Words, n: int, signed: bool, out: Bytes) -> None:
        """Writes a bit an element, then, if `signed`, a sign a word; both begin at a whole byte."""
        split = -(-n // 8)
        sparse.write_bitmap(words, out[:split])
        if signed:
            sparse.write_signs(words, out[split:])

    write_indices = staticmethod(chunked.write_indices)

    def write_raw(self, form: ThresholdRule, words: Words, values: NDArray[Any], out: Bytes) -> None:
        """Writes the elements sent to uint8 of n elements, zeros."""
        dense, positions = out.view(_DENSE[form]), words >> 1
        if form == "wgt":
            dense[positions] = values
            return
        signs = 1 - 2 * (words & 1).astype(np.int16)
        levels = values.astype(np.int16) if form == "qgt" else np.int16(1)
        dense[positions] = (signs * levels).astype(dense.dtype)

    # Reading

    def aligned(self, body: Bytes, dtype: Any) -> NDArray[Any]:
        """Bytes, at any address, as an array of another type."""
        return aligned(body, dtype)

    def read_golomb_rice(self, bodies: Sequence[RiceBody], signed: bool) -> list[tuple[Words, int]]:
        """Reads the sections that bodies begin with, in one call.

        Args:
            bodies: each of a message.
            signed: whether signs were written.

        Returns:
            For each its words, uint32 [k] ascending, and how many bytes the section takes.
        """
        return golomb_rice_sections.read(
            [each.body for each in bodies], [each.n for each in bodies], [each.k for each in bodies], signed
        )

    def read_packed32(self, body: Bytes, n: int, k: int) -> Words:
        """Words from 4k bytes, uint32 [k]."""
        words = self.aligned(body, "<u4")
        if not sparse.check_ascending(words, n):
            raise fault(64)
        return words

    def read_bitmap(self, body: Bytes, n: int, k: int, signed: bool) -> Words:
        """Words from what `write_bitmap` wrote, uint32 [k]."""
        words, split = np.empty(k, np.uint32), -(-n // 8)
        if sparse.read_bitmap(body[:split], words) != k:
            raise fault(128)
        if _spare_bits_set(body[:split], n) or (signed and _spare_bits_set(body, k)):
            raise fault(2)
        if signed:
            sparse.read_signs(body[split:], words)
        return words

    def read_indices(self, body: Bytes, n: int, chunk: int, keep: int) -> Words:
        """Words from what `write_indices` wrote, uint32 [k]."""
        return chunked.read_indices(body, n, chunk, keep)

    def read_raw(self, form: ThresholdRule, body: Bytes, n: int, k: int) -> tuple[Words, NDArray[Any]]:
        """Words and values from what `write_raw` wrote; whether wgt's reach tau is not looked at."""
        dense = self.aligned(body, _DENSE[form])
        # A float's bits have its sign and are 0 for 0.0 alone: a stray -0.0 counts, and is then refused.
        bits = dense.view("<i4") if form == "wgt" else dense
        if sparse.count_nonzero(bits) != k:
            raise fault(128)
        words = np.empty(k, np.uint32)
        sparse.read_dense(bits, words)
        sent = dense[words >> 1]
        if form == "wgt":
            return words, sent
        magnitudes = np.abs(sent.astype(np.int32))
        if k and int(magnitudes.max()) > _TOP[form]:
            raise fault(65536)
        return words, magnitudes.astype(np.uint8) if form == "qgt" else _NO_VALUES

    def unpack(self, body: Bytes, bits: int, k: int) -> NDArray[Any]:
        """Symbols from `packed_bytes(k, bits)` bytes, uint8 [k] up to 8 bits, uint16 [k] above."""
        return bitpack.unpack(body, bits, k, self.threads)

    def read_huffman(self, body: Bytes, bits: int, k: int) -> NDArray[Any]:
        """Symbols from a section and nothing else."""
        return huffman.decode(body, bits, k, self.threads)

    def join_signs(self, words: Words, values: NDArray[np.float32]) -> None:
        """Gives words without signs those of their float32 values."""
        words |= np.signbit(values)

    def check_no_signs(self, words: Words) -> None:
        """Whether no word has a sign."""
        if (words & 1).any():
            raise fault(131072)

    def check_wgt(self, words: Words, values: NDArray[np.float32], tau: float) -> None:
        """Whether float32 values are finite, reach tau and agree in sign with their words."""
        if not sparse.check_values(words, values, np.float32(tau)):
            raise fault(512)

    def check_levels(self, levels: NDArray[np.uint8]) -> None:
        """Whether no level, uint8 [k], is 0."""
        if levels.size and int(levels.min()) == 0:
            raise fault(1024)

    def check_floats(self, values: NDArray[np.float32]) -> None:
        """Whether float32 values are finite."""
        if not np.isfinite(values).all():
            raise fault(2048)

    def check_halves(self, kind: HalfFormat, symbols: NDArray[np.uint16]) -> None:
        """Whether what 16-bit symbols stand for is finite."""
        exponent = _EXPONENT_BITS[kind]
        if ((symbols & exponent) == exponent).any():
            raise fault(2048)

    def check_linear_tables(self, bits: int, lows: NDArray[np.float32], steps: NDArray[np.float32]) -> None:
        """Whether tables are such as `linear_pass` writes, and all values finite."""
        if not linear.linear_tables_valid(bits, lows, steps):
            raise fault(4096)

    def check_quantile_tables(self, tables: NDArray[np.uint16], exponents: NDArray[np.int8]) -> None:
        """Whether tables are such as `quantile_pass` writes."""
        if not quantile.quantile_tables_valid(tables.reshape(exponents.size, -1), exponents):
            raise fault(8192)

    def check_fp8(self, symbols: NDArray[np.uint8], exponents: NDArray[np.int8]) -> None:
        """Whether no symbol is a NaN, and exponents are such as `fp8_pass` writes."""
        if symbols.size and int((symbols & 0x7F).max()) == 0x7F:
            raise fault(16384)
        least, most = minifloat.FP8_EXPONENTS
        if exponents.size and not least <= int(exponents.min()) <= int(exponents.max()) <= most:
            raise fault(32768)
