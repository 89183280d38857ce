"""The values of an update as bytes: what stands behind the positions.

| form | bytes |
| --- | --- |
| wgt, f32 | k float32 |
| fp16, bf16 | k times 2 bytes, the bits of a 16-bit float |
| bgt, strom | none: the sign stands with the position |
| qgt | k levels, 1 to 255, as symbols of 8 bits |
| linear, quantile, fp8 | u8 bits, 3 bytes 0, u32 block; the blocks' tables; k symbols of `bits` bits |

Symbols are bit-packed (raw), or Huffman coded; the header says which. Without elements there are no bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ...ops.cpu import bitpack, huffman
from ..forms import FORMS, Form
from ..quantized import QUANTIZED, Quantized
from ..update import Update

Bytes = NDArray[np.uint8]
Symbols = Literal["raw", "huffman"]
LEVEL_BITS = 8
"""Of a symbol of qgt."""
QUANTIZER_HEAD = 8
"""Bytes that quantized values begin with."""


@dataclass(frozen=True)
class SizedValues:
    """Values whose length is known."""

    symbols: Symbols
    size: int
    """Bytes."""


@dataclass(frozen=True)
class PlannedValues(SizedValues):
    """Values that are ready to be written."""

    write: Callable[[Bytes], None]
    """Fills exactly `size` bytes, zeroed."""


_NO_VALUES = np.empty(0, np.uint8)
_NONE = PlannedValues("raw", 0, lambda out: None)


def plan_values(update: Update, symbols: str = "auto", threads: int = 1) -> PlannedValues:
    """Chooses how an update's values are written.

    Args:
        update: any.
        symbols: `raw`, `huffman`, or `auto` for the shorter; without meaning for forms that have none.
        threads: how many may share the work.
    """
    if isinstance(update.values, Quantized):
        coded = _plan_symbols(update.values.symbols, update.values.bits, symbols, threads)
        return _with_tables(update.values, coded)
    if FORMS[update.form].symbols and update.k:
        return _plan_symbols(update.values, LEVEL_BITS, symbols, threads)
    if not update.values.size:
        return _NONE
    plain = update.values.view(np.uint8)

    def write(out: Bytes) -> None:
        out[:] = plain

    return PlannedValues("raw", plain.size, write)


def _plan_symbols(array: NDArray[Any], bits: int, symbols: str, threads: int) -> PlannedValues:
    packed = bitpack.packed_bytes(array.size, bits)
    if symbols != "raw" and array.size:
        plan = huffman.plan(array, bits, threads)
        if symbols == "huffman" or plan.size < packed:
            return PlannedValues("huffman", plan.size, lambda out: huffman.encode(plan, array, out, threads))
    return PlannedValues("raw", packed, lambda out: bitpack.pack(array, bits, out, threads))


def quantizer_head(values: Quantized) -> Bytes:
    """How quantized values begin: bits and block; uint8 [QUANTIZER_HEAD]."""
    return np.array([values.bits, values.block], "<u4").view(np.uint8)


def read_quantizer_head(head: Bytes, k: int) -> tuple[int, int]:
    """Bits and block of k quantized values; raises CorruptMessage where there are no such values."""
    bits, block = int(head[0]), int(aligned(head[4:], "<u4")[0])
    if not 1 <= bits <= 16 or head[1:4].any() or block >= k:
        raise CorruptMessage(f"symbols of {bits} bits in blocks of {block} are none of {k} values")
    return bits, block


def _with_tables(values: Quantized, coded: PlannedValues) -> PlannedValues:
    parts = [quantizer_head(values), *(table.view(np.uint8) for table in values.tables())]
    table_bytes = sum(part.size for part in parts)

    def write(out: Bytes) -> None:
        at = 0
        for part in parts:
            out[at : at + part.size] = part
            at += part.size
        coded.write(out[at:])

    return PlannedValues(coded.symbols, table_bytes + coded.size, write)


def read_values(body: Bytes, form: Form, k: int, symbols: Symbols, threads: int = 1) -> Any:
    """Reads what a plan wrote, all of `body`.

    Returns:
        What `Update.values` holds for the form.

    Raises:
        CorruptMessage: the length is not right, a float is not finite, a level is 0, a table or a code is
            not valid.
    """
    if form in ("bgt", "strom") and not body.size and symbols == "raw":
        return _NO_VALUES
    traits = FORMS[form]
    if symbols == "huffman" and (k == 0 or not traits.symbols):
        raise CorruptMessage(f"there are no symbols to decode in {k} values of {form}")
    if traits.quantized and k:
        return _read_quantized(body, form, k, symbols, threads)
    if traits.symbols and k:
        levels = _read_symbols(body, LEVEL_BITS, k, symbols, threads)
        if int(levels.min()) == 0:
            raise CorruptMessage("a level is 0; levels are 1 to 255")
        return levels
    expected = 0 if form in ("bgt", "strom") else k * traits.dtype.itemsize
    if body.size != expected:
        raise CorruptMessage(f"{body.size} bytes of values, {k} of {form} take {expected}")
    values = aligned(body, traits.dtype.str)
    if form == "f32" and not np.isfinite(values).all():  # the reader of messages looks at wgt's
        raise CorruptMessage("a value is not finite")
    if form in ("fp16", "bf16"):
        exponent = 0x7C00 if form == "fp16" else 0x7F80
        if ((values & exponent) == exponent).any():
            raise CorruptMessage("a value is not finite")
    return values


def _read_symbols(body: Bytes, bits: int, k: int, symbols: Symbols, threads: int) -> NDArray[Any]:
    if symbols == "huffman":
        return huffman.decode(body, bits, k, threads)
    if body.size != bitpack.packed_bytes(k, bits):
        raise CorruptMessage(f"{body.size} bytes do not hold {k} symbols of {bits} bits")
    return bitpack.unpack(body, bits, k, threads)


def _read_quantized(body: Bytes, form: Form, k: int, symbols: Symbols, threads: int) -> Quantized:
    if body.size < QUANTIZER_HEAD:
        raise CorruptMessage(f"{body.size} bytes are less than a quantizer's head: {QUANTIZER_HEAD}")
    bits, block = read_quantizer_head(body[:QUANTIZER_HEAD], k)
    kind, at, tables = QUANTIZED[form], QUANTIZER_HEAD, []
    for dtype, count in kind.table_layout(bits, block, k):
        size = np.dtype(dtype).itemsize * count
        if body.size - at < size:
            raise CorruptMessage(
                f"{body.size} bytes cannot hold the tables of {k} values in blocks of {block}"
            )
        tables.append(aligned(body[at : at + size], dtype))
        at += size
    return kind.from_tables(bits, block, _read_symbols(body[at:], bits, k, symbols, threads), tables)


def aligned(body: Bytes, dtype: str) -> NDArray[Any]:
    """The bytes as an array of another type, copied only if they lie at an odd address."""
    return np.require(body.view(dtype), requirements="A")
