"""Writes the messages of all parameters of a bucket in a few calls."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ops.array import host
from ...ops.cpu import byte_rows, huffman_rows
from ...ops.cpu.byte_rows import Numbers
from ...ops.interface import Ops
from ...ops.wire import Payload
from ..forms import FORMS
from ..message import HEADER_BYTES, Planned
from .frame import HUFFMAN, Frame, frame_of
from .values import SharedValues


@dataclass(frozen=True, eq=False)
class _Written(Planned):
    """See `Planned`."""

    values: SharedValues
    frame: Frame
    coded: huffman_rows.HuffmanRows | None
    huffman: NDArray[np.bool_]
    """[m], whose symbols are Huffman coded."""
    lengths: Numbers
    """[m], bytes of the bodies."""
    sizes: list[int]
    threads: int

    def write(self, payload: Payload, begin: int, ops: Ops) -> None:
        """See `Planned.write`."""
        values, frame, out = self.values, self.frame, host(payload.array)
        starts = begin + np.cumsum(self.lengths + HEADER_BYTES) - self.lengths - HEADER_BYTES
        opening = frame.opening.copy()
        opening["length"] = self.lengths
        opening["symbols"][self.huffman] = HUFFMAN
        each = np.full(starts.size, frame.opening_bytes, np.int64)
        byte_rows.copy_rows(opening.view(np.uint8), np.arange(starts.size) * each, each, out, starts)
        ats = starts + each
        for table, (begins, sizes) in zip(values.tables, frame.tables, strict=True):
            byte_rows.copy_rows(host(table).view(np.uint8), begins, sizes, out, ats)
            ats = ats + sizes
        symbols, offsets, packed = host(values.symbols), values.offsets, ~self.huffman
        if self.coded is None:
            byte_rows.pack_rows(symbols, offsets.begins, offsets.sizes, values.bits, out, ats, self.threads)
            return
        which = np.flatnonzero(packed)
        byte_rows.pack_rows(
            symbols, offsets.begins[which], offsets.sizes[which], values.bits, out, ats[which], self.threads
        )
        self.coded.write(np.flatnonzero(self.huffman), out, ats[self.huffman])


def plan(values: SharedValues, symbols: str, threads: int) -> Planned | None:
    """How values in the CPU's memory are going to be written; None if they are to be taken one by one.

    Args:
        values: of at least one parameter.
        symbols: `raw`, `huffman` or `auto`.
        threads: how many may work at once.
    """
    frame = frame_of(values.form, values.sizes, values.bits, values.block, values.offsets)
    if symbols == "raw" or not FORMS[values.form].symbols:
        none = np.zeros(len(values), np.bool_)
        return _written(values, frame, None, none, frame.packed, threads)
    if values.bits > huffman_rows.MOST_BITS:
        return None
    offsets = values.offsets
    coded = huffman_rows.plan_rows(host(values.symbols), offsets.begins, offsets.sizes, values.bits, threads)
    shorter = coded.sizes < frame.packed if symbols == "auto" else np.ones(len(values), np.bool_)
    return _written(values, frame, coded, shorter, np.where(shorter, coded.sizes, frame.packed), threads)


def _written(
    values: SharedValues,
    frame: Frame,
    coded: huffman_rows.HuffmanRows | None,
    huffman: NDArray[np.bool_],
    symbol_bytes: Numbers,
    threads: int,
) -> _Written:
    lengths = frame.before + symbol_bytes
    return _Written(values, frame, coded, huffman, lengths, (lengths + HEADER_BYTES).tolist(), threads)
