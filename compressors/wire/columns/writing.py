"""Writes the messages of all updates of a bucket in a few calls."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...ops.array import host
from ...ops.cpu import byte_rows, huffman_rows
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ...ops.offsets import Numbers
from ..codecs.every import Every
from ..forms import FORMS
from ..message import HEADER_BYTES, LARGEST_N, Planned
from .headers import HUFFMAN, headers
from .positions import PlannedPositions, plan_positions
from .shape import Shape, shape_of
from .updates import UpdateColumns
from .values import SharedValues


@dataclass(frozen=True, eq=False)
class _PlannedValues:
    """Values that are ready to be written; arrays have an element for each update."""

    values: SharedValues
    shape: Shape
    coded: huffman_rows.HuffmanRows | None
    huffman: NDArray[np.bool_]
    """Whose symbols are Huffman coded."""
    sizes: Numbers
    """Bytes of the values."""
    threads: int

    def write(self, which: Numbers | None, out: NDArray[np.uint8], ats: Numbers) -> None:
        """Writes those of some updates.

        Args:
            which: their numbers, ascending; None for all.
            out: uint8.
            ats: where the values of each of them begin there.
        """
        values, shape, some = self.values, self.shape, slice(None) if which is None else which
        if shape.opening is not None:
            byte_rows.put_rows(shape.opening[some], out, ats)
            ats = ats + shape.opening.itemsize
        for table, (begins, sizes) in zip(values.tables, shape.tables, strict=True):
            byte_rows.copy_rows(host(table).view(np.uint8), begins[some], sizes[some], out, ats)
            ats = ats + sizes[some]
        symbols, offsets = host(values.symbols), values.offsets
        if self.coded is not None and self.huffman.any():
            numbers = np.arange(len(values))[some]
            huffman = self.huffman[numbers]
            self.coded.write(numbers[huffman], out, ats[huffman])
            some, ats = numbers[~huffman], ats[~huffman]
        begins, counts = offsets.begins[some], offsets.sizes[some]
        byte_rows.pack_rows(symbols, begins, counts, values.bits, out, ats, self.threads)


@dataclass(frozen=True, eq=False)
class _Written(Planned):
    """See `Planned`."""

    updates: UpdateColumns
    positions: PlannedPositions | None
    """None where all elements are sent."""
    values: _PlannedValues | None
    lengths: Numbers
    """int64 [m], bytes of the bodies."""
    sizes: list[int]

    def write(self, payload: Payload, begin: int, ops: CpuOps) -> None:
        """See `Planned.write`."""
        out, updates, positions = host(payload.array), self.updates, self.positions
        ends = begin + np.cumsum(self.lengths + HEADER_BYTES)
        bodies = ends - self.lengths
        made = headers(updates.form, updates.n, updates.counts, updates.taus)
        made["length"] = self.lengths
        which = None
        if positions is None:
            made["codec"] = Every.code
        else:
            made["codec"] = positions.codes
            positions.write(payload, bodies, ops)
            if not positions.with_values.all():
                which = np.flatnonzero(positions.with_values)
        # What follows the positions is written after them: a section may have overwritten it.
        if self.values is not None:
            some = slice(None) if which is None else which
            made["symbols"][some] = HUFFMAN * self.values.huffman[some]
            self.values.write(which, out, (ends - self.values.sizes)[some])
        byte_rows.put_rows(made, out, bodies - HEADER_BYTES)


def plan(updates: UpdateColumns, codec: str, symbols: str, threads: int) -> Planned | None:
    """How updates in the CPU's memory are going to be written; None if they are to be taken one by one.

    Args:
        updates: at least one.
        codec: a codec's name, or `auto`.
        symbols: `raw`, `huffman` or `auto`.
        threads: how many may work at once.
    """
    if int(updates.n.max()) > LARGEST_N:
        return None
    values, value_bytes = None, np.zeros(len(updates), np.int64)
    if updates.values is not None:
        values = _plan_values(updates.values, "raw" if codec == "raw" else symbols, threads)
        if values is None:
            return None
        value_bytes = values.sizes
    if updates.words is None:
        return _written(updates, None, values, value_bytes) if codec == "auto" else None
    positions = plan_positions(updates, codec, value_bytes)
    if positions is None:
        return None
    lengths = positions.sizes + np.where(positions.with_values, value_bytes, 0)
    return _written(updates, positions, values, lengths)


def _written(
    updates: UpdateColumns,
    positions: PlannedPositions | None,
    values: _PlannedValues | None,
    lengths: Numbers,
) -> _Written:
    return _Written(updates, positions, values, lengths, (lengths + HEADER_BYTES).tolist())


def _plan_values(values: SharedValues, symbols: str, threads: int) -> _PlannedValues | None:
    offsets, bits = values.offsets, values.bits
    shape = shape_of(values.form, bits, values.block, offsets)
    if symbols == "raw" or not FORMS[values.form].symbols:
        none = np.zeros(len(values), np.bool_)
        return _PlannedValues(values, shape, None, none, shape.before + shape.packed, threads)
    if bits > huffman_rows.MOST_BITS:
        return None
    coded = huffman_rows.plan_rows(host(values.symbols), offsets.begins, offsets.sizes, bits, threads)
    huffman = offsets.sizes > 0
    if symbols == "auto":
        huffman &= coded.sizes < shape.packed
    sizes = shape.before + np.where(huffman, coded.sizes, shape.packed)
    return _PlannedValues(values, shape, coded, huffman, sizes, threads)
