"""The values of an update as bytes, which follow the positions (docs/reference/messages.md).

Symbols are bit-packed (raw), or Huffman coded: all of a bucket in one run with one code, or each
parameter with bits and a code of its own.
"""

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..ops.array import Array, Bytes, Numbers, aligned, host
from ..ops.cpu import bitpack, huffman
from ..ops.cpu.bitpack import Symbols
from ..ops.cpu.bits import Section, any_has
from ..ops.interface import Form, Offsets
from .codec import copied, joined, need
from .forms import FORMS, require_written, table_layout
from .update import Update

STEP_BITS = 11
"""Bits of a symbol of steps."""
_SYMBOL_BITS: dict[Form, int] = {"qgt": 8, "fp8": 8, "steps": STEP_BITS}
_BLOCK = struct.Struct("<I")
_CODED = 128


class PlannedValues(NamedTuple):
    """Values that are ready to be written, and what the header says of them."""

    section: Section
    bits: int = 0
    """Bits of a symbol; 0 where there are none, or each parameter has its own."""
    huffman: bool = False
    by_parameter: Bytes | None = None
    """uint8 [m], if each parameter has bits and a code of its own."""


def _shorter(
    symbols: Symbols, bits: int, code: huffman.Code | None, wanted: str, threads: int
) -> tuple[bool, Section]:
    """Whether symbols with one code are Huffman coded, and how they are written."""
    size = int(bitpack.packed_bytes(symbols.size, bits))
    if code is not None and (wanted == "huffman" or code.estimate < size):
        planned = huffman.plan(symbols, code, threads)
        if wanted == "huffman" or planned.size < size:
            return True, planned
    return False, Section(size, lambda out: bitpack.pack(symbols, bits, out, threads=threads))


def plan_values(update: Update, symbols: str, threads: int) -> PlannedValues:
    """Chooses how an update's values are written, on the host; the bytes do not depend on the threads.

    Symbols are `raw`, `huffman`, or `auto` for the shorter; it means nothing for forms that have none.
    """
    if not FORMS[update.form].symbols or not update.k:
        return PlannedValues(copied(update.values))
    quantized = FORMS[update.form].quantized
    bits = update.bits if quantized else np.where(update.counts > 0, _SYMBOL_BITS[update.form], 0)
    planned = _plan_symbols(host(update.values), update.counts, bits, symbols, threads)
    before = [] if planned.by_parameter is None else [copied(planned.by_parameter)]
    if quantized:
        block = update.block if update.block < update.counts.max() else 0
        before += [copied(_BLOCK.pack(block)), *map(copied, update.tables)]
    return planned._replace(section=joined([*before, planned.section])) if before else planned


def _plan_symbols(
    values: Symbols, counts: Numbers, bits: Numbers, symbols: str, threads: int
) -> PlannedValues:
    """The shorter of one code for all and one for each parameter, where both are possible."""
    sent = np.flatnonzero(counts)
    widths, ends = bits[sent], np.cumsum(counts)[sent]
    codes = None if symbols == "raw" else huffman.Codes.of(values, ends, widths, threads)

    def about(coded: Any, packed: Any) -> Any:
        """Bytes that runs take."""
        return packed if codes is None else coded if symbols == "huffman" else np.minimum(coded, packed)

    if (widths == widths[0]).all():
        same, whole = int(widths[0]), None if codes is None else huffman.Code.of(codes.frequencies)
        least = about(whole and whole.estimate, bitpack.packed_bytes(values.size, same))
        by_run = about(codes and codes.estimates, bitpack.packed_bytes(counts[sent], same))
        if codes is None or sent.size == 1 or least <= counts.size + by_run.sum():
            coded, section = _shorter(values, same, whole, symbols, threads)
            return PlannedValues(section, same, coded)
    ways = []
    for run, (count, end, width) in enumerate(
        zip(counts[sent].tolist(), ends.tolist(), widths.tolist(), strict=True)
    ):
        code = None if codes is None else codes.code(run)
        ways.append(_shorter(values[end - count : end], width, code, symbols, threads))
    by_parameter = bits.astype(np.uint8)
    by_parameter[sent] += np.array([_CODED * coded for coded, _ in ways], np.uint8)
    return PlannedValues(joined([section for _, section in ways]), by_parameter=by_parameter)


def read_values(
    body: Bytes, form: Form, counts: Numbers, coding: tuple[int, bool, bool], threads: int
) -> tuple[Array, Numbers, int, tuple[Array, ...]]:
    """Reads what a plan wrote, all of an untrusted body: values, bits, block and tables of an `Update`.

    Args:
        body: uint8.
        form: of the values.
        counts: int64 [m], how many of each parameter.
        coding: bits, whether Huffman coded, whether by parameter: what the header says.
        threads: how many may work at once.

    Raises:
        CorruptMessage: the length, a float, a level, a table or a code is not valid.
    """
    k, traits = int(counts.sum()), FORMS[form]
    if not traits.symbols or not k:
        if any(coding):
            raise CorruptMessage(f"symbols: there are none in {k} values of {form}")
        return _read_plain(body, form, k), np.zeros_like(counts) if traits.quantized else _NO_BITS, 0, ()
    bits, coded, body = _read_bits(body, form, counts, coding)
    block: int = 0
    tables: Sequence[NDArray[Any]] = ()
    if traits.quantized:
        need(body, _BLOCK.size, "the length of blocks")
        (block,), body = _BLOCK.unpack_from(body.data), body[_BLOCK.size :]
        if block and block >= counts.max():
            raise CorruptMessage(f"blocks of {block} values, where no parameter has more than {counts.max()}")
        tables, body = _read_tables(body, form, Offsets.of(counts, block), bits)
    values = _read_symbols(body, counts, bits, coded, by_parameter=coding[2], threads=threads)
    if form == "qgt" and not values.all():
        raise CorruptMessage("values: a level is 0; levels are 1 to 255")
    if form == "fp8" and any_has(values & np.uint8(0x7F), np.uint8(0x7F)):
        raise CorruptMessage("values: an 8-bit float is no number")
    return values, bits if traits.quantized else _NO_BITS, block, tuple(tables)


_NO_BITS = np.empty(0, np.int64)
_NEVER: dict[Form, Any] = {"f32": np.uint32(0x7F800000), "fp16": np.uint16(0x7C00), "bf16": np.uint16(0x7F80)}
"""Bits that no number has all of: infinities and NaNs have."""


def _read_plain(body: Bytes, form: Form, k: int) -> Array:
    dtype = FORMS[form].dtype
    size = 0 if dtype is None or not k else k * dtype.itemsize
    if body.size != size:
        raise CorruptMessage(f"values: {body.size} bytes, {k} of {form} take {size}")
    if dtype is None:
        return body
    values, never = aligned(body, dtype), _NEVER.get(form)
    if never is not None and any_has(values.view(never.dtype), never):
        raise CorruptMessage(f"values: one of {form} is not finite")
    return values


def _read_bits(
    body: Bytes, form: Form, counts: Numbers, coding: tuple[int, bool, bool]
) -> tuple[Numbers, NDArray[np.bool_], Bytes]:
    """Bits of the symbols of each parameter, which are Huffman coded, and what is left of the body."""
    bits, coded, by_parameter = coding
    widths, are_coded = np.where(counts > 0, bits, 0), (counts > 0) & coded
    if by_parameter:
        if bits or coded:
            raise CorruptMessage("symbols: the header speaks for all, though each parameter has its own code")
        need(body, counts.size, "bits of the parameters' symbols")
        codes, body = body[: counts.size], body[counts.size :]
        widths, are_coded = (codes & (_CODED - 1)).astype(np.int64), codes >= _CODED
        if codes[counts == 0].any():
            raise CorruptMessage("symbols: a parameter that sends nothing has bits")
    sent = widths[counts > 0]
    if sent.min() < 1 or sent.max() > 16:
        raise CorruptMessage("symbols: their bits are not 1 to 16")
    due = _SYMBOL_BITS.get(form, sent[0])
    if form != "linear" and (sent != due).any():
        raise CorruptMessage(f"symbols of {form} have {due} bits, not {sent.min()} to {sent.max()}")
    return widths, are_coded, body


def _read_tables(
    body: Bytes, form: Form, offsets: Offsets, bits: Numbers
) -> tuple[Sequence[NDArray[Any]], Bytes]:
    blocks, tables = offsets.all_blocks, list[NDArray[Any]]()
    for dtype, entries in table_layout(form, int(bits.max())):
        size = dtype.itemsize * entries * blocks
        need(body, size, f"the tables of {blocks} blocks")
        tables.append(aligned(body[:size], dtype))
        body = body[size:]
    require_written(form, np.repeat(bits, offsets.blocks), tables)
    return tables, body


def _read_symbols(
    body: Bytes, counts: Numbers, bits: Numbers, coded: NDArray[np.bool_], *, by_parameter: bool, threads: int
) -> Symbols:
    k, most = int(counts.sum()), int(bits.max())
    if not by_parameter and not coded.any():
        return bitpack.unpack(body, most, k, threads)
    if not by_parameter:
        symbols, used = huffman.decode(body, most, k, threads)
    else:
        pieces, used = [], 0
        for i in np.flatnonzero(counts).tolist():
            width, count = int(bits[i]), int(counts[i])
            if coded[i]:
                symbols, size = huffman.decode(body[used:], width, count, threads)
            else:
                size = bitpack.packed_bytes(count, width)
                symbols = bitpack.unpack(body[used : used + size], width, count, threads)
            pieces.append(symbols)
            used += size
        symbols = np.concatenate(pieces)  # of 16 bits where one is
    if used != body.size:
        raise CorruptMessage(f"symbols: they end {body.size - used} bytes before the message does")
    return symbols
