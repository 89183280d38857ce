"""Reads the messages of all parameters of a bucket in a few calls."""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ...ops.array import Bytes, host
from ...ops.cpu import byte_rows, huffman_rows
from ...ops.cpu.bitpack import symbol_type
from ...ops.cpu.byte_rows import Numbers
from ...ops.cpu.ops import CPU
from ...ops.offsets import Offsets, offsets_of
from ...ops.returns import Returns
from ..forms import FORMS, Form
from ..message import HEADER, HEADER_BYTES, SYMBOLS
from ..quantized import QUANTIZED
from .frame import HUFFMAN, OPENING, Frame, frame_of
from .values import SharedValues

_LENGTH_AT = 20


class _Odd(Exception):
    """What is to be read one by one, so that `message` says what is wrong, if anything is."""


def read(form: Form, sizes: tuple[int, ...], payload: Bytes, threads: int) -> SharedValues | None:
    """The values of messages that fill a payload; None if they are to be read one by one.

    Args:
        form: of all.
        sizes: n of each, at least 1.
        payload: uint8, untrusted. Values may share its memory.
        threads: how many may work at once.
    """
    try:
        return _read(form, sizes, payload, threads) if sizes else None
    except (_Odd, CorruptMessage):
        return None


def _read(form: Form, sizes: tuple[int, ...], payload: Bytes, threads: int) -> SharedValues:
    kind, messages = QUANTIZED.get(form), _cut(payload, len(sizes), OPENING if form in QUANTIZED else HEADER)
    bits, block = 16, 0
    if kind is not None:
        bits, block = int(messages.opening["bits"][0]), int(messages.opening["block"].max())
        _must(1 <= bits <= huffman_rows.MOST_BITS)
    tight = offsets_of(sizes, block, 1)
    frame = frame_of(form, sizes, bits, block, tight)
    _must(_fits(messages.opening, frame))
    _must(_sums_match(payload, messages))
    tables, ats = [], messages.starts + frame.opening_bytes
    for (dtype, _), (begins, lengths) in zip(
        kind.block_layout(bits) if kind else (), frame.tables, strict=True
    ):
        _must(bool((ats + lengths <= messages.ends).all()))
        table = np.empty(int(lengths.sum()), np.uint8)
        byte_rows.copy_rows(payload, ats, lengths, table, begins)
        tables.append(table.view(dtype))
        ats = ats + lengths
    coded = messages.opening["symbols"] == HUFFMAN
    _must(FORMS[form].symbols or not coded.any())
    packed = ~coded
    _must(bool(((messages.ends - ats)[packed] == frame.packed[packed]).all()))
    symbols, offsets = _symbols(payload, ats, messages.ends, coded, form, bits, tight, threads)
    values = SharedValues(form, sizes, bits, block, offsets, symbols, tuple(tables))
    _check(values)
    return values


@dataclass(frozen=True, eq=False)
class _Messages:
    """Where messages stand, and how they begin."""

    starts: Numbers
    """int64 [m]"""
    ends: Numbers
    """int64 [m]"""
    opening: NDArray[Any]
    """[m], copies of their beginnings."""


def _cut(payload: Bytes, count: int, opening: np.dtype[Any]) -> _Messages:
    """Cuts a payload by the lengths in headers."""
    bounds, width = np.empty(count + 1, np.int64), opening.itemsize
    _must(byte_rows.begins_of(payload, bounds, HEADER_BYTES, _LENGTH_AT))
    starts, ends = bounds[:-1], bounds[1:]
    _must(int((ends - starts).min()) >= width)
    found, each = np.empty(count, opening), np.full(count, width, np.int64)
    byte_rows.copy_rows(payload, starts, each, found.view(np.uint8), np.arange(count) * width)
    return _Messages(starts, ends, found)


def _fits(opening: NDArray[Any], frame: Frame) -> bool:
    """Whether headers say what is due, but for fields that are free."""
    shape = opening.size, frame.opening_bytes
    said, due = opening.view(np.uint8).reshape(shape), frame.opening.view(np.uint8).reshape(shape)
    return bool(((said & frame.fixed) == due).all()) and int(opening["symbols"].max()) < len(SYMBOLS)


def _sums_match(payload: Bytes, messages: _Messages) -> bool:
    """Whether each message has the checksum that its header says, whose own place counts as zeros."""
    opening, width = messages.opening.copy(), messages.opening.itemsize
    opening["crc"] = 0
    heads, whole = opening.view(np.uint8).data, payload.data
    each = zip(
        range(0, heads.nbytes, width),
        messages.starts.tolist(),
        messages.ends.tolist(),
        messages.opening["crc"].tolist(),
        strict=True,
    )
    return all(
        zlib.crc32(whole[start + HEADER_BYTES : end], zlib.crc32(heads[at : at + HEADER_BYTES])) == crc
        for at, start, end, crc in each
    )


def _symbols(
    payload: Bytes,
    begins: Numbers,
    ends: Numbers,
    coded: NDArray[np.bool_],
    form: Form,
    bits: int,
    tight: Offsets,
    threads: int,
) -> tuple[NDArray[Any], Offsets]:
    """Symbols from the rests of bodies, and where they stand."""
    packed = ~coded
    if bits == 8 and form != "fp8" and packed.all():  # each of the symbols of fp8 is looked at
        return payload, Offsets(begins, tight.sizes, tight.firsts, tight.blocks)
    symbols: NDArray[Any] = np.empty(tight.all_symbols, symbol_type(bits))
    ats, counts = tight.begins, tight.sizes
    _must(byte_rows.unpack_rows(payload, begins[packed], bits, symbols, ats[packed], counts[packed], threads))
    if coded.any():
        _must(
            huffman_rows.read_rows(
                payload, begins[coded], ends[coded], bits, symbols, ats[coded], counts[coded], threads
            )
        )
    return symbols, tight


def _check(values: SharedValues) -> None:
    """Raises CorruptMessage for symbols and tables that are none that are written."""
    kind, faults = QUANTIZED.get(values.form), CPU.faults(Returns(CPU))
    if kind is not None:
        kind.check(values.bits, values.symbols, values.tables, faults, CPU)
    elif values.form == "fp16" or values.form == "bf16":  # noqa: PLR1714 (mypy narrows by this form)
        CPU.check_halves(values.form, host(values.symbols), faults)


def _must(condition: bool) -> None:
    if not condition:
        raise _Odd
