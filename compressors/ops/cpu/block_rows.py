"""Pieces of many parameters as a table, so that one call of a kernel quantizes all of them.

A row is int64 and is about one piece (see `blockwise`): the address of its residual, 0 without one, and of
its gradient; how many elements it has, and where its symbols begin; elements of a block; where the blocks'
tables begin, and how many there are. Whoever makes a row keeps the arrays alive until the kernel returns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from ..array import host
from ..results import QuantizedPass, Quantizing
from ..segments import Offsets, block_length
from .blockwise import PIECE, pieces, take_up
from .rows import Rows, floats
from .threads import portions, run_all

_COLUMNS = 7
_RESIDUAL, _GRADIENT, ELEMENTS, _SYMBOLS, BLOCK, _TABLES, _BLOCKS = range(_COLUMNS)

REPORT = np.dtype([("squares", np.float64), ("done", np.int64), ("finite", np.bool_)])
"""Of a row: the sum of squares kept, of how many blocks there are symbols, and whether all sums of residual
and gradient are finite."""
RowReports = NDArray[np.void]
Kernel = Callable[[Rows, NDArray[Any], RowReports], None]
"""Quantizes rows; fills in symbols and reports."""
PutBack = Callable[[NDArray[Any], int, slice, NDArray[np.float32]], None]
"""Adds what symbols stand for, in blocks of so many elements with these tables, to a residual."""


@njit(nogil=True, cache=True)
def residual_of(row):  # type: ignore[no-untyped-def]
    """The residual of a row that `keeps` one."""
    return floats(row[_RESIDUAL], row[ELEMENTS])


@njit(nogil=True, cache=True)
def keeps(row):  # type: ignore[no-untyped-def]
    """Whether a row has a residual."""
    return row[_RESIDUAL] != 0


@njit(nogil=True, cache=True)
def opened(row, all_symbols):  # type: ignore[no-untyped-def]
    """A row's gradient and symbols, elements of a block, its tables, and how many blocks."""
    n, begin, first = row[ELEMENTS], row[_SYMBOLS], row[_TABLES]
    gradient, symbols = floats(row[_GRADIENT], n), all_symbols[begin : begin + n]
    return gradient, symbols, row[BLOCK], slice(first, first + row[_BLOCKS]), row[_BLOCKS]


@njit(nogil=True, cache=True)
def take_up_rows(rows, keys):  # type: ignore[no-untyped-def]
    """`blockwise.take_up` over rows; keys, int32 [rows, 2], receives the lowest and the highest key."""
    for i in range(rows.shape[0]):
        gradient = floats(rows[i, _GRADIENT], rows[i, ELEMENTS])
        if keeps(rows[i]):
            keys[i, 0], keys[i, 1] = take_up(residual_of(rows[i]), gradient)
        else:
            keys[i, 0], keys[i, 1] = take_up(None, gradient)


@njit(nogil=True, cache=True)
def write_report(report, squares, done, finite):  # type: ignore[no-untyped-def]
    """Fills in a REPORT."""
    report.squares = squares
    report.done = done
    report.finite = finite


@dataclass(frozen=True)
class _Cut:
    """The rows of parameters of some sizes, wherever they lie."""

    rows: Rows
    """Addresses are bytes from a parameter's first element."""
    parameters: NDArray[np.int64]
    """Of which each row is."""


@lru_cache(256)  # every step asks for the same
def _cut(sizes: tuple[int, ...], block: int, most: int) -> _Cut:
    shared, rows, parameters = Offsets.of(np.array(sizes, np.int64), block), [], []
    for number, (n, symbols, tables) in enumerate(zip(sizes, shared.symbols, shared.tables, strict=True)):
        for piece in pieces(n, block, most):
            begin, elements = 4 * piece.elements.start, piece.elements.stop - piece.elements.start
            symbol, table = symbols.start + piece.elements.start, tables.start + piece.blocks.start
            rows.append((begin, begin, elements, symbol, piece.block, table, piece.count))
            parameters.append(number)
    return _Cut(np.array(rows, np.int64).reshape(-1, _COLUMNS), np.array(parameters, np.int64))


def table_of(work: Quantizing, most: int = PIECE) -> tuple[Rows, NDArray[np.int64], list[Tensor]]:
    """The pieces of parameters, of `most` elements at most.

    Returns:
        Their rows, of which parameter each is, and gradients that must live until kernels have returned.
    """
    wide = [each if each.dtype == torch.float32 else each.float() for each in work.gradients]
    cut = _cut(tuple([each.numel() for each in wide]), work.block, most)
    rows, by = cut.rows.copy(), cut.parameters
    residuals = np.array([0 if each is None else each.data_ptr() for each in work.residuals], np.int64)[by]
    rows[:, _RESIDUAL] = np.where(residuals, residuals + rows[:, _RESIDUAL], 0)
    rows[:, _GRADIENT] += np.array([each.data_ptr() for each in wide], np.int64)[by]
    return rows, by, wide


def over_rows(work: Quantizing, kernel: Kernel, put_back: PutBack, threads: int) -> list[QuantizedPass]:
    """Quantizes pieces of parameters in one call; with threads, in one call each.

    Args:
        work: the parameters.
        kernel: takes up and quantizes rows.
        put_back: for parameters that are not finite.
        threads: how many may share the rows; no result depends on it.
    """
    rows, by, _wide = table_of(work)
    symbols = host(work.symbols)
    reports = np.zeros(len(rows), REPORT)
    run_all(
        [partial(kernel, rows[at], symbols, reports[at]) for at in portions(rows[:, ELEMENTS], threads)],
        threads,
    )
    sums = np.zeros(len(work.gradients))
    np.add.at(sums, by, reports["squares"])  # in order
    if reports["finite"].all():
        return list(map(QuantizedPass, sums.tolist(), repeat(False)))
    broken = set(by[~reports["finite"]].tolist())
    for number, row, blocks in zip(by, rows, reports["done"], strict=True):
        kept = work.residuals[number]
        if number in broken and kept is not None:
            begin = (row[_RESIDUAL] - kept.data_ptr()) // 4
            count = min(blocks * row[BLOCK], row[ELEMENTS])
            taken = symbols[row[_SYMBOLS] : row[_SYMBOLS] + count]
            tables = slice(row[_TABLES], row[_TABLES] + blocks)
            put_back(taken, int(row[BLOCK]), tables, kept.numpy()[begin : begin + count])
    return [QuantizedPass(0.0 if i in broken else one, i in broken) for i, one in enumerate(sums.tolist())]


def fits_rows(n: int, block: int, most: int = PIECE) -> bool:
    """Whether no block of n elements is larger than a piece."""
    return block_length(n, block) <= most


def alone(
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    symbols: NDArray[Any],
    bits: int,
    block: int,
) -> Quantizing:
    """Of one parameter."""
    kept = None if residual is None else torch.from_numpy(residual)
    return Quantizing([kept], [torch.from_numpy(gradient)], symbols, bits, block)
