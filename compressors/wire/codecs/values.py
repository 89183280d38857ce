"""The values of an update as bytes, which follow the positions.

| form | bytes |
| --- | --- |
| wgt, f32 | k float32 |
| fp16, bf16 | k times 2 bytes, the bits of a 16-bit float |
| bgt, strom | none: the sign stands with the position |
| qgt | k levels, 1 to 255, as symbols of 8 bits |
| linear, quantile, fp8 | u8 bits, 3 bytes 0, u32 block; the blocks' tables; k symbols of `bits` bits |

Symbols are bit-packed (raw), or Huffman coded; the header says which. Without elements there are no bytes.
"""

import struct
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...errors import CorruptMessage
from ...ops.array import Array, Bytes, host
from ...ops.cpu.bitpack import packed_bytes
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import HuffmanCoded, Payload
from ..forms import FORMS
from ..quantized import QUANTIZED, Quantized, blocks_of
from ..update import Update
from .body import Head, need

Symbols = Literal["raw", "huffman"]
LEVEL_BITS = 8
"""Of a symbol of qgt."""
_QUANTIZER_HEAD = struct.Struct("<II")
"""Bits, whose upper bytes are 0, and block."""
QUANTIZER_HEAD = _QUANTIZER_HEAD.size
"""Bytes that quantized values begin with."""


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class PlannedValues:
    """Values that are ready to be written."""

    symbols: Symbols
    size: int
    """Bytes."""
    tables: tuple[Array, ...] = ()
    """Before them."""
    array: Array | None = None
    """Values that are no symbols; or symbols, to be packed."""
    bits: int = 0
    """Of a symbol to be packed; 0 for none."""
    coded: HuffmanCoded | None = None
    head: bytes | None = None
    """A quantizer's."""

    def write(self, payload: Payload, at: int, ops: CpuOps) -> None:
        """Writes all bytes from `at` on."""
        if self.head is not None:
            payload.put(self.head, at)
            at += QUANTIZER_HEAD
        for table in self.tables:
            ops.copy_bytes(host(table), payload.array[at : at + table.nbytes])
            at += table.nbytes
        if self.coded is not None:
            payload.write_huffman(self.coded, at)
        elif self.array is not None and self.bits:
            out = payload.array[at : at + packed_bytes(int(self.array.size), self.bits)]
            ops.pack(host(self.array), self.bits, out)
        elif self.array is not None:
            ops.copy_bytes(host(self.array), payload.array[at : at + self.array.nbytes])


_NONE = PlannedValues("raw", 0)


def plan_values(update: Update, symbols: str, ops: CpuOps) -> PlannedValues:
    """Chooses how an update's values are written.

    Args:
        update: any.
        symbols: `raw`, `huffman`, or `auto` for the shorter; without meaning for forms that have none.
        ops: of the CPU.
    """
    values = update.values
    if isinstance(values, Quantized):
        head, tables = _QUANTIZER_HEAD.pack(values.bits, values.block), values.tables()
        before = QUANTIZER_HEAD + sum(table.nbytes for table in tables)
        return _plan_symbols(
            values.symbols, values.bits, symbols, ops, before=before, head=head, tables=tables
        )
    if FORMS[update.form].symbols and update.k:
        return _plan_symbols(values, LEVEL_BITS, symbols, ops)
    return PlannedValues("raw", int(values.nbytes), array=values) if values.size else _NONE


def _plan_symbols(
    array: Array,
    bits: int,
    symbols: str,
    ops: CpuOps,
    *,
    before: int = 0,
    head: bytes | None = None,
    tables: tuple[Array, ...] = (),
) -> PlannedValues:
    packed = packed_bytes(int(array.size), bits)
    if symbols != "raw" and array.size:
        below = None if symbols == "huffman" else packed
        coded = ops.plan_huffman(host(array), bits, below)
        if coded is not None:
            return PlannedValues("huffman", before + coded.size, tables, coded=coded, head=head)
    return PlannedValues("raw", before + packed, tables, array, bits, head=head)


def read_values(body: Bytes, head: Head, ops: CpuOps) -> Any:
    """Reads what a plan wrote, all of the body.

    Returns:
        What `Update.values` holds for the form.

    Raises:
        CorruptMessage: the length is not right, a float is not finite, a level is 0, a table or a code is
            not valid.
    """
    form, k = head.form, head.k
    if (form == "bgt" or form == "strom") and not body.size and head.symbols == "raw":  # noqa: PLR1714
        return ops.empty(0, np.uint8)
    traits = FORMS[form]
    if head.symbols == "huffman" and (k == 0 or not traits.symbols):
        raise CorruptMessage(f"there are no symbols to decode in {k} values of {form}")
    if traits.quantized and k:
        return _read_quantized(body, head, ops)
    if traits.symbols and k:
        levels = _read_symbols(body, LEVEL_BITS, head, ops)
        ops.check_levels(levels)
        return levels
    expected = 0 if traits.sign_apart else k * traits.dtype.itemsize
    if body.size != expected:
        raise CorruptMessage(f"{body.size} bytes of values, {k} of {form} take {expected}")
    values = ops.aligned(body, traits.dtype)
    if form == "f32":  # the reader of messages looks at wgt's
        ops.check_floats(values)
    elif form == "fp16" or form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
        ops.check_halves(form, values)
    return values


def _read_symbols(body: Bytes, bits: int, head: Head, ops: CpuOps) -> Any:
    if head.symbols == "huffman":
        return ops.read_huffman(body, bits, head.k)
    if body.size != packed_bytes(head.k, bits):
        raise CorruptMessage(f"{body.size} bytes do not hold {head.k} symbols of {bits} bits")
    return ops.unpack(body, bits, head.k)


def _read_quantized(body: Bytes, head: Head, ops: CpuOps) -> Quantized:
    need(body, QUANTIZER_HEAD, "a quantizer's head")
    bits, block = _QUANTIZER_HEAD.unpack_from(body.data)
    if not 1 <= bits <= 16 or block >= head.k:
        raise CorruptMessage(f"symbols of {bits} bits in blocks of {block} are none of {head.k} values")
    kind, at, tables = QUANTIZED[head.form], QUANTIZER_HEAD, []
    blocks = blocks_of(head.k, block)
    for dtype, each in kind.block_layout(bits):
        size = dtype.itemsize * each * blocks
        need(body, at + size, f"the tables of {head.k} values in blocks of {block}")
        tables.append(ops.aligned(body[at : at + size], dtype))
        at += size
    symbols = _read_symbols(body[at:], bits, head, ops)
    kind.check(bits, symbols, tables, ops)
    return kind.of(bits, block, symbols, tables)
