"""Sums updates of every element piece by piece: a piece stays in the caches until all workers are added."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..ops.array import host
from ..ops.cpu import dense_rows
from ..ops.cpu.blockwise import pieces
from ..ops.offsets import Numbers
from ..wire.columns.values import SharedValues
from .incoming import ColumnsReceived, Received

_PIECE = 1 << 18
"""Elements, about, that are summed before the next ones; with fewer, calls take longer than memory."""


def write_values(
    values: SharedValues, rows: Numbers, out: NDArray[np.float32], starts: Numbers, *, add: bool
) -> None:
    """Writes, or adds, what symbols stand for; for rows see `dense_rows.write_values`."""
    shape, tables = (values.bits, values.block), tuple(map(host, values.tables))
    dense_rows.write_values(values.form, host(values.symbols), shape, tables, rows, out, starts, add)


def sum_dense(workers: Sequence[Received], divisor: int, total: Tensor) -> bool:
    """Fills a bucket, float32 [bucket elements], with dense updates, added in order, over a divisor.

    Returns:
        Whether it did: these are updates of every element of the bucket, whose symbols are of one shape.
    """
    columns = [each for each in workers if isinstance(each, ColumnsReceived) and not each.whole]
    columns = [each for each in columns if each.updates.words is None]
    values = [each.updates.values for each in columns if each.updates.values is not None]
    shapes = {(each.form, each.bits, each.block, each.offsets.sizes.tobytes()) for each in values}
    if len(values) < len(workers) or len(shapes) != 1:
        return False
    ((_, _, block, sizes),) = shapes
    cut, out = _cut(sizes, block), total.numpy()
    if cut.elements != out.size:
        return False
    tables = [_rows_of(each, cut) for each in values]
    starts = columns[0].starts[cut.by] + cut.rows[:, 0]
    for at in cut.groups:
        low, high = int(starts[at.start]), int(starts[at.stop - 1] + cut.rows[at.stop - 1, 1])
        out[low:high] = 0
        for each, rows in zip(values, tables, strict=True):
            write_values(each, rows[at], out, starts[at], add=True)
        if divisor != 1:
            out[low:high] /= np.float32(divisor)
    return True


@dataclass(frozen=True, eq=False)
class _Cut:
    """Updates in pieces."""

    rows: Numbers
    """int64 [p, 4]: of each piece its first element, and how many; its first block, and how many."""
    by: Numbers
    """int64 [p], of which update each is."""
    groups: list[slice]
    """Pieces that are summed together."""
    elements: int


@lru_cache(64)  # every step asks for the same
def _cut(sizes: bytes, block: int) -> _Cut:
    rows, by = [], []
    n = np.frombuffer(sizes, np.int64)
    for number, size in enumerate(n.tolist()):
        for piece in pieces(size, block, _PIECE):
            first, blocks = piece.elements.start, piece.blocks
            rows.append((first, piece.elements.stop - first, blocks.start, blocks.stop - blocks.start))
            by.append(number)
    table = np.array(rows, np.int64).reshape(-1, 4)
    numbers = (table[:, 1].cumsum() - 1) // _PIECE
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    return _Cut(table, np.array(by), list(map(slice, starts, [*starts[1:], len(rows)])), int(n.sum()))


def _rows_of(values: SharedValues, cut: _Cut) -> Numbers:
    """The pieces of a worker's values."""
    rows, offsets = cut.rows.copy(), values.offsets
    rows[:, 0] += offsets.begins[cut.by]
    rows[:, 2] += offsets.firsts[cut.by]
    return rows
