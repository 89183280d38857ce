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
from ...ops.array import Array
from ...ops.cpu.bitpack import packed_bytes
from ...ops.interface import Ops
from ...ops.returns import Returns, Steps
from ...ops.wire import HuffmanCoded, Payload
from ..forms import FORMS
from ..quantized import QUANTIZED, Quantized, blocks_of
from ..update import Update
from .body import Body, Head, Reading, need

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

    def write(self, payload: Payload, at: int, ops: Ops) -> None:
        """Writes all bytes from `at` on."""
        if self.head is not None:
            payload.put(self.head, at)
            at += QUANTIZER_HEAD
        for table in self.tables:
            ops.copy_bytes(table, payload.array[at : at + table.nbytes])
            at += table.nbytes
        if self.coded is not None:
            payload.write_huffman(self.coded, at)
        elif self.array is not None and self.bits:
            out = payload.array[at : at + packed_bytes(int(self.array.size), self.bits)]
            ops.pack(self.array, self.bits, out)
        elif self.array is not None:
            ops.copy_bytes(self.array, payload.array[at : at + self.array.nbytes])


_NONE = PlannedValues("raw", 0)


def plan_values(update: Update, symbols: str, ops: Ops, returns: Returns) -> Steps[PlannedValues]:
    """Chooses how an update's values are written.

    Args:
        update: any.
        symbols: `raw`, `huffman`, or `auto` for the shorter; without meaning for forms that have none.
        ops: where the update is.
        returns: what the steps wait for.
    """
    values = update.values
    if isinstance(values, Quantized):
        head, tables = _QUANTIZER_HEAD.pack(values.bits, values.block), values.tables()
        before = QUANTIZER_HEAD + sum(table.nbytes for table in tables)
        return (
            yield from _plan_symbols(
                values.symbols, values.bits, symbols, ops, returns, before=before, head=head, tables=tables
            )
        )
    if FORMS[update.form].symbols and update.k:
        return (yield from _plan_symbols(values, LEVEL_BITS, symbols, ops, returns))
    return PlannedValues("raw", int(values.nbytes), array=values) if values.size else _NONE


def _plan_symbols(
    array: Array,
    bits: int,
    symbols: str,
    ops: Ops,
    returns: Returns,
    *,
    before: int = 0,
    head: bytes | None = None,
    tables: tuple[Array, ...] = (),
) -> Steps[PlannedValues]:
    packed = packed_bytes(int(array.size), bits)
    if symbols != "raw" and array.size:
        below = None if symbols == "huffman" else packed
        coded = yield from ops.plan_huffman(array, bits, below, returns)
        if coded is not None:
            return PlannedValues("huffman", before + coded.size, tables, coded=coded, head=head)
    return PlannedValues("raw", before + packed, tables, array, bits, head=head)


def read_values(body: Body, head: Head, reading: Reading) -> Steps[Any]:
    """Reads what a plan wrote, all of the body.

    Returns:
        What `Update.values` holds for the form.

    Raises:
        CorruptMessage: the length is not right, a float is not finite, a level is 0, a table or a code is
            not valid; on a device some of that is found by the faults' `check`.
    """
    ops, faults, form, k = reading.ops, reading.faults, head.form, head.k
    if (form == "bgt" or form == "strom") and not body.size and head.symbols == "raw":  # noqa: PLR1714
        return ops.empty(0, np.uint8)
    traits = FORMS[form]
    if head.symbols == "huffman" and (k == 0 or not traits.symbols):
        raise CorruptMessage(f"there are no symbols to decode in {k} values of {form}")
    if traits.quantized and k:
        return (yield from _read_quantized(body, head, reading))
    if traits.symbols and k:
        levels = yield from _read_symbols(body, LEVEL_BITS, head, reading)
        ops.check_levels(levels, faults)
        return levels
    expected = 0 if traits.sign_apart else k * traits.dtype.itemsize
    if body.size != expected:
        raise CorruptMessage(f"{body.size} bytes of values, {k} of {form} take {expected}")
    values = ops.aligned(body.array, traits.dtype)
    if form == "f32":  # the reader of messages looks at wgt's
        ops.check_floats(values, faults)
    elif form == "fp16" or form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
        ops.check_halves(form, values, faults)
    return values


def _read_symbols(body: Body, bits: int, head: Head, reading: Reading) -> Steps[Any]:
    if head.symbols == "huffman":
        return (yield from reading.ops.read_huffman(body.array, bits, head.k, reading.faults, reading.looks))
    if body.size != packed_bytes(head.k, bits):
        raise CorruptMessage(f"{body.size} bytes do not hold {head.k} symbols of {bits} bits")
    return reading.ops.unpack(body.array, bits, head.k, reading.faults)


def _read_quantized(body: Body, head: Head, reading: Reading) -> Steps[Quantized]:
    need(body, QUANTIZER_HEAD, "a quantizer's head")
    said = yield from body.look(0, QUANTIZER_HEAD, reading)
    bits, block = _QUANTIZER_HEAD.unpack(said.data)
    if not 1 <= bits <= 16 or block >= head.k:
        raise CorruptMessage(f"symbols of {bits} bits in blocks of {block} are none of {head.k} values")
    kind, at, tables = QUANTIZED[head.form], QUANTIZER_HEAD, []
    blocks = blocks_of(head.k, block)
    for dtype, each in kind.block_layout(bits):
        size = dtype.itemsize * each * blocks
        need(body, at + size, f"the tables of {head.k} values in blocks of {block}")
        tables.append(reading.ops.aligned(body.array[at : at + size], dtype))
        at += size
    symbols = yield from _read_symbols(body.behind(at), bits, head, reading)
    kind.check(bits, symbols, tables, reading.faults, reading.ops)
    return kind.of(bits, block, symbols, tables)
