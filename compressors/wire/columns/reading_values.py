"""Reads the values of all updates of a bucket in a few calls."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...ops.array import Bytes, host
from ...ops.cpu import byte_rows, dense_rows, huffman_rows
from ...ops.cpu.bitpack import symbol_type
from ...ops.cpu.ops import CPU
from ...ops.offsets import Numbers, Offsets, offsets_of
from ..forms import FORMS, Form
from ..quantized import QUANTIZED
from .headers import HUFFMAN
from .odd import must
from .shape import OPENING, Shape, shape_of
from .values import SharedValues, flat


def read_values(
    form: Form,
    counts: Numbers,
    payload: Bytes,
    begins: Numbers,
    ends: Numbers,
    coded: NDArray[np.uint8],
    threads: int,
) -> SharedValues:
    """The values of some messages.

    Args:
        form: of all; one with values.
        counts: int64 [m], how many each has.
        payload: uint8, untrusted.
        begins: int64 [m], where each one's begin.
        ends: int64 [m], where its message ends.
        coded: uint8 [m], how symbols are coded, as headers say it.
        threads: how many may work at once.

    Raises:
        Odd: they are to be read one by one.
        CorruptMessage: likewise.
    """
    kind, bits, block = QUANTIZED.get(form), 8 * FORMS[form].dtype.itemsize, 0
    if kind is not None:
        must(bool((ends - begins >= OPENING.itemsize).all() and counts.min() > 0))
        opening = byte_rows.take_rows(payload, begins, OPENING)
        bits, block = int(opening["bits"][0]), int(opening["block"].max())
        must(1 <= bits <= huffman_rows.MOST_BITS)
    tight = flat(counts) if kind is None else offsets_of(tuple(counts.tolist()), block, 1)
    shape = shape_of(form, bits, block, tight)
    tables = []
    if kind is not None and shape.opening is not None:
        must(opening.tobytes() == shape.opening.tobytes())
        begins = begins + OPENING.itemsize
        for (dtype, _), (ats, lengths) in zip(kind.block_layout(bits), shape.tables, strict=True):
            must(bool((begins + lengths <= ends).all()))
            table = np.empty(int(lengths.sum()), np.uint8)
            byte_rows.copy_rows(payload, begins, lengths, table, ats)
            tables.append(table.view(dtype))
            begins = begins + lengths
    symbols, offsets = _symbols(form, payload, begins, ends, coded == HUFFMAN, bits, shape, tight, threads)
    values = SharedValues(form, bits, block, offsets, symbols, tuple(tables))
    _check(values)
    return values


def _symbols(
    form: Form,
    payload: Bytes,
    begins: Numbers,
    ends: Numbers,
    coded: NDArray[np.bool_],
    bits: int,
    shape: Shape,
    tight: Offsets,
    threads: int,
) -> tuple[NDArray[Any], Offsets]:
    """Symbols, and where they stand."""
    counts, ats, any_coded = tight.sizes, tight.begins, bool(coded.any())
    packed = ~coded if any_coded else slice(None)
    must(bool((ends - begins == shape.packed)[packed].all()))
    must(not any_coded or (FORMS[form].symbols and int(counts[coded].min()) > 0))
    dtype = np.dtype(symbol_type(bits) if form in QUANTIZED else FORMS[form].dtype)
    may_lie_apart = form in QUANTIZED or form in ("fp16", "bf16")
    if may_lie_apart and bits in byte_rows.WHOLE_BYTES and not any_coded:
        shared = _in_place(payload, begins, dtype)
        if shared is not None:
            symbols, first = shared
            return symbols, Offsets((begins - first) // dtype.itemsize, counts, tight.firsts, tight.blocks)
    symbols = np.empty(tight.all_symbols, dtype)
    must(byte_rows.unpack_rows(payload, begins[packed], bits, symbols, ats[packed], counts[packed], threads))
    if any_coded:
        must(
            huffman_rows.read_rows(
                *(payload, begins[coded], ends[coded], bits, symbols, ats[coded], counts[coded]), threads
            )
        )
    return symbols, tight


def _in_place(payload: Bytes, begins: Numbers, dtype: np.dtype[Any]) -> tuple[NDArray[Any], int] | None:
    """A payload as an array of a type, and its first byte; None where values lie at an odd address."""
    width = dtype.itemsize
    first = -payload.ctypes.data % width
    if ((begins - first) % width).any():
        return None
    last = payload.size - (payload.size - first) % width
    return payload[first:last].view(dtype), first


def _check(values: SharedValues) -> None:
    """Raises CorruptMessage or Odd for symbols and tables that are none that are written."""
    kind = QUANTIZED.get(values.form)
    if kind is not None:
        kind.check(values.bits, _NONE, values.tables, CPU)
    must(dense_rows.valid(values.form, host(values.symbols), values.offsets))


_NONE = np.empty(0, np.uint8)
