"""Writing and reading messages in the CPU's memory: readers raise at once for what is wrong."""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Array, Bytes, aligned, host
from ..faults import WRONG_CHECKSUM, WRONG_LENGTHS, Faults, fault
from ..results import Found, HalfFormat, ThresholdRule
from ..returns import Returns, Steps, at_once
from ..wire import HuffmanCoded, Payload, RiceBody, Sections, Wire
from . import bitpack, chunked, golomb_rice_sections, huffman, linear, minifloat, quantile, sparse

Words = NDArray[np.uint32]
_HEADER, _CRC_AT, _LENGTH = 32, 28, struct.Struct("<20xQ")
_CRC = struct.Struct("<I")
_DENSE = {"wgt": "<f4", "bgt": "i1", "qgt": "<i2", "strom": "i1"}
_TOP = {"bgt": 1, "strom": 1, "qgt": 255}
_EXPONENT_BITS = {"fp16": 0x7C00, "bf16": 0x7F80}
_NO_VALUES = np.empty(0, np.uint8)


@dataclass(frozen=True)
class Coded:
    """Symbols, and their code."""

    plan: huffman.HuffmanPlan
    symbols: NDArray[Any]
    threads: int

    @property
    def size(self) -> int:
        """See `HuffmanCoded.size`."""
        return self.plan.size


class HostPayload(Payload):
    """See `Payload`."""

    array: Bytes

    def __init__(self, size: int) -> None:
        """So many bytes."""
        self.array = np.zeros(size, np.uint8)
        self._bytes = self.array.data

    def put(self, data: Bytes | bytes, at: int) -> None:
        """See `Payload.put`."""
        self._bytes[at : at + len(data)] = data if isinstance(data, bytes) else data.data

    def write_huffman(self, coded: HuffmanCoded, at: int) -> None:
        """See `Payload.write_huffman`."""
        assert isinstance(coded, Coded)
        huffman.encode(coded.plan, coded.symbols, self.array[at : at + coded.size], coded.threads)

    def seal(self, starts: Sequence[int], ends: Sequence[int]) -> None:
        """See `Payload.seal`."""
        for start, end in zip(starts, ends, strict=True):
            _CRC.pack_into(self._bytes, start + _CRC_AT, zlib.crc32(self._bytes[start:end]))


class RaisedAtOnce(Faults):
    """Finds what is wrong with a message where it is looked at."""

    def verify(self, message: Array, crc: int) -> None:
        """See `Faults.verify`; the checksum's own place counts as zeros."""
        whole = host(message).data
        head = zlib.crc32(bytes(whole[:_CRC_AT]) + bytes(4))
        if zlib.crc32(whole[_HEADER:], head) != crc:
            raise CorruptMessage(WRONG_CHECKSUM)


_FAULTS = RaisedAtOnce()


def _find(payload: Bytes, most: int) -> list[Found] | str:
    found: list[Found] = []
    at, size = 0, payload.size
    while at < size:
        if size - at < _HEADER:
            return WRONG_LENGTHS["header"]
        (length,) = _LENGTH.unpack_from(payload.data, at)
        end = at + _HEADER + length
        if end > size:
            return WRONG_LENGTHS["body"]
        if len(found) == most:
            return WRONG_LENGTHS["most"]
        found.append(Found(at, length, payload[at : at + _HEADER], payload[at + _HEADER : end]))
        at = end
    return found


def _spare_bits_set(packed: Bytes, bits: int) -> bool:
    return bool(bits % 8 and packed[-1] >> (bits % 8))


class CpuWire(Wire):
    """See `Wire`."""

    threads: int

    # Writing

    def payload(self, size: int) -> HostPayload:
        """See `Wire.payload`."""
        return HostPayload(size)

    def copy_bytes(self, source: NDArray[Any], out: Bytes) -> None:
        """See `Wire.copy_bytes`."""
        out[:] = source.view(np.uint8)

    def measure_golomb_rice(self, words: Sequence[Words], signed: bool, returns: Returns) -> Steps[Sections]:
        """See `Wire.measure_golomb_rice`; one call measures all."""
        return at_once(golomb_rice_sections.measured(words, signed))

    def plan_huffman(
        self, symbols: NDArray[Any], bits: int, below: int | None, returns: Returns
    ) -> Steps[HuffmanCoded | None]:
        """See `Wire.plan_huffman`."""
        plan = huffman.plan(symbols, bits, self.threads)
        shorter = below is None or plan.size < below
        return at_once(Coded(plan, symbols, self.threads) if shorter else None)

    def pack(self, symbols: NDArray[Any], bits: int, out: Bytes) -> None:
        """See `Wire.pack`."""
        bitpack.pack(symbols, bits, out, self.threads)

    def write_bitmap(self, words: Words, n: int, signed: bool, out: Bytes) -> None:
        """See `Wire.write_bitmap`."""
        split = -(-n // 8)
        sparse.write_bitmap(words, out[:split])
        if signed:
            sparse.write_signs(words, out[split:])

    write_indices = staticmethod(chunked.write_indices)

    def write_raw(self, form: ThresholdRule, words: Words, values: NDArray[Any], out: Bytes) -> None:
        """See `Wire.write_raw`."""
        dense, positions = out.view(_DENSE[form]), words >> 1
        if form == "wgt":
            dense[positions] = values
            return
        signs = 1 - 2 * (words & 1).astype(np.int16)
        levels = values.astype(np.int16) if form == "qgt" else np.int16(1)
        dense[positions] = (signs * levels).astype(dense.dtype)

    # Reading

    def faults(self, returns: Returns) -> RaisedAtOnce:
        """See `Wire.faults`."""
        return _FAULTS

    def find_messages(
        self, payloads: Bytes, stride: int, sizes: Sequence[int], most: int
    ) -> list[list[Found] | str]:
        """See `Wire.find_messages`."""
        return [_find(payloads[row * stride : row * stride + size], most) for row, size in enumerate(sizes)]

    def aligned(self, body: Bytes, dtype: Any) -> NDArray[Any]:
        """See `Wire.aligned`; copied only if they lie at an odd address."""
        return aligned(body, dtype)

    def read_golomb_rice(
        self, bodies: Sequence[RiceBody], signed: bool, behind: int, looks: Returns
    ) -> Steps[list[tuple[Words, int, Bytes]]]:
        """See `Wire.read_golomb_rice`; one call reads all."""
        arrays = [each.body for each in bodies]
        read = golomb_rice_sections.read(
            arrays, [each.n for each in bodies], [each.k for each in bodies], signed
        )
        return at_once(
            [
                (words, used, body[used : used + behind])
                for (words, used), body in zip(read, arrays, strict=True)
            ]
        )

    def read_packed32(self, body: Bytes, n: int, k: int, faults: Faults) -> Words:
        """See `Wire.read_packed32`."""
        words = self.aligned(body, "<u4")
        if not sparse.check_ascending(words, n):
            raise fault(64)
        return words

    def read_bitmap(self, body: Bytes, n: int, k: int, signed: bool, faults: Faults) -> Words:
        """See `Wire.read_bitmap`."""
        words, split = np.empty(k, np.uint32), -(-n // 8)
        if sparse.read_bitmap(body[:split], words) != k:
            raise fault(128)
        if _spare_bits_set(body[:split], n) or (signed and _spare_bits_set(body, k)):
            raise fault(2)
        if signed:
            sparse.read_signs(body[split:], words)
        return words

    def read_indices(self, body: Bytes, n: int, chunk: int, keep: int, faults: Faults) -> Words:
        """See `Wire.read_indices`."""
        return chunked.read_indices(body, n, chunk, keep)

    def read_raw(
        self, form: ThresholdRule, body: Bytes, n: int, k: int, faults: Faults
    ) -> tuple[Words, NDArray[Any]]:
        """See `Wire.read_raw`."""
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

    def unpack(self, body: Bytes, bits: int, k: int, faults: Faults) -> NDArray[Any]:
        """See `Wire.unpack`."""
        return bitpack.unpack(body, bits, k, self.threads)

    def read_huffman(
        self, body: Bytes, bits: int, k: int, faults: Faults, looks: Returns
    ) -> Steps[NDArray[Any]]:
        """See `Wire.read_huffman`."""
        return at_once(huffman.decode(body, bits, k, self.threads))

    def join_signs(self, words: Words, values: NDArray[np.float32]) -> None:
        """See `Wire.join_signs`."""
        words |= np.signbit(values)

    def check_no_signs(self, words: Words, faults: Faults) -> None:
        """See `Wire.check_no_signs`."""
        if (words & 1).any():
            raise fault(131072)

    def check_wgt(self, words: Words, values: NDArray[np.float32], tau: float, faults: Faults) -> None:
        """See `Wire.check_wgt`."""
        if not sparse.check_values(words, values, np.float32(tau)):
            raise fault(512)

    def check_levels(self, levels: NDArray[np.uint8], faults: Faults) -> None:
        """See `Wire.check_levels`."""
        if levels.size and int(levels.min()) == 0:
            raise fault(1024)

    def check_floats(self, values: NDArray[np.float32], faults: Faults) -> None:
        """See `Wire.check_floats`."""
        if not np.isfinite(values).all():
            raise fault(2048)

    def check_halves(self, kind: HalfFormat, symbols: NDArray[np.uint16], faults: Faults) -> None:
        """See `Wire.check_halves`."""
        exponent = _EXPONENT_BITS[kind]
        if ((symbols & exponent) == exponent).any():
            raise fault(2048)

    def check_linear_tables(
        self, bits: int, lows: NDArray[np.float32], steps: NDArray[np.float32], faults: Faults
    ) -> None:
        """See `Wire.check_linear_tables`."""
        if not linear.linear_tables_valid(bits, lows, steps):
            raise fault(4096)

    def check_quantile_tables(
        self, tables: NDArray[np.uint16], exponents: NDArray[np.int8], faults: Faults
    ) -> None:
        """See `Wire.check_quantile_tables`."""
        if not quantile.quantile_tables_valid(tables.reshape(exponents.size, -1), exponents):
            raise fault(8192)

    def check_fp8(self, symbols: NDArray[np.uint8], exponents: NDArray[np.int8], faults: Faults) -> None:
        """See `Wire.check_fp8`."""
        if symbols.size and int((symbols & 0x7F).max()) == 0x7F:
            raise fault(16384)
        least, most = minifloat.FP8_EXPONENTS
        if exponents.size and not least <= int(exponents.min()) <= int(exponents.max()) <= most:
            raise fault(32768)
