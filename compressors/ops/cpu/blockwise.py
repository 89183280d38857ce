"""What the quantizing passes share: blocks, the pieces they are worked on in, and what a pass reports.

A quantizing pass cuts n elements into blocks, each with its own table. Threads do not share out blocks
but pieces: some thousand elements that are either whole blocks or a part of one. Pieces depend on n
and the block's length alone, so no result depends on the number of threads. The pieces of all parameters
make a table for kernels, so that one call quantizes all of them.

Where blocks fit pieces, a pass goes over memory once: a block's gradient is taken up into the residual, which
finds its range, and then what stands in the residual is quantized in place. A sum that is not finite may turn
up behind blocks that are done; their values are added to the residual again. Larger blocks are taken up
first, all pieces of them, and then quantized.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from ..array import host
from ..interface import QuantizedPass, Quantizing
from ..segments import PIECE, Numbers, Offsets, block_length, pieces
from .rows import Rows, floats
from .threads import portions, run_all

LINE = 8192
"""Elements whose squares are summed in float32 before they go into a float64."""

_LARGEST = np.float32(np.finfo(np.float32).max)


# Order keys


@njit(nogil=True, cache=True)
def order_key(a):  # type: ignore[no-untyped-def]
    """An int32 that orders as the float32 a does; -0.0 comes right before 0.0.

    Infinities and NaNs lie outside [LOWEST_KEY, HIGHEST_KEY].
    """
    bits = np.float32(a).view(np.int32)
    return np.int32(bits ^ np.int32((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


HIGHEST_KEY = 0x7F7FFFFF
"""The order key of the largest float32."""
LOWEST_KEY = -HIGHEST_KEY - 1
"""The order key of the most negative float32."""
_NO_KEYS = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
"""The lowest and the highest of no keys."""


@njit(nogil=True, cache=True)
def from_order_key(key):  # type: ignore[no-untyped-def]
    """The float32 of an order key."""
    return np.int32(key ^ np.int32((key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@njit(nogil=True, cache=True)
def keys_finite(low_key, high_key):  # type: ignore[no-untyped-def]
    """Whether nothing from the lowest to the highest order key is infinite or a NaN."""
    return low_key >= LOWEST_KEY and high_key <= HIGHEST_KEY


@njit(nogil=True, cache=True)
def take_up(residual, gradient, keeps):  # type: ignore[no-untyped-def]
    """Adds a gradient to a residual, but for elements whose sum is not finite.

    Args:
        residual: float32 [n], or the gradient, which stays as it is.
        gradient: float32 [n].
        keeps: whether there is a residual.

    Returns:
        The lowest and the highest order key of residual + gradient, which include what is not finite.
    """
    # Keys and not floats, and no min() or max(): so that the loops vectorize.
    low, high = _NO_KEYS
    if keeps:
        for j in range(gradient.size):
            a = residual[j] + gradient[j]
            key = order_key(a)
            residual[j] = a if abs(a) <= _LARGEST else residual[j]
            low = key if key < low else low
            high = key if key > high else high
    else:
        for j in range(gradient.size):
            key = order_key(gradient[j])
            low = key if key < low else low
            high = key if key > high else high
    return low, high


# The table of pieces

_COLUMNS = 7
_RESIDUAL, _GRADIENT, ELEMENTS, _SYMBOLS, BLOCK, _TABLES, _BLOCKS = range(_COLUMNS)
"""Of a row, int64, about one piece: the address of its residual, 0 without one, and of its gradient; its
elements, and where its symbols begin; elements of a block; where the blocks' tables begin, and how many there
are. Whoever makes a row keeps the arrays alive until the kernel returns."""

REPORT = np.dtype([("squares", np.float64), ("done", np.int64), ("finite", np.bool_)])
"""Of a row: the sum of squares kept, of how many blocks there are symbols, and whether all sums of residual
and gradient are finite."""
Kernel = Callable[[Rows, NDArray[Any], NDArray[np.void]], None]
"""Quantizes rows; fills in symbols and reports."""
PutBack = Callable[[NDArray[Any], int, Numbers, NDArray[np.float32]], None]
"""Adds what symbols stand for, in blocks of so many elements, to a residual; int64 [1, 4]: where they begin,
how many there are, their first table, how many of these."""


@njit(nogil=True, cache=True)
def opened(row, all_symbols):  # type: ignore[no-untyped-def]
    """A row's arrays and what is known of them.

    Returns:
        The residual, or the gradient where there is none; the gradient; whether there is a residual; the
        symbols; elements of a block; the blocks' tables.
    """
    n, begin, first, keeps = row[ELEMENTS], row[_SYMBOLS], row[_TABLES], row[_RESIDUAL] != 0
    gradient = floats(row[_GRADIENT], n)
    residual = floats(row[_RESIDUAL], n) if keeps else gradient
    symbols = all_symbols[begin : begin + n]
    return residual, gradient, keeps, symbols, row[BLOCK], slice(first, first + row[_BLOCKS])


@njit(nogil=True, cache=True)
def _take_up_rows(rows, symbols, keys):  # type: ignore[no-untyped-def]
    """`take_up` over whole rows; keys, int32 [rows, 2], receives the lowest and the highest key of each."""
    for i in range(rows.shape[0]):
        residual, gradient, keeps, _, _, _ = opened(rows[i], symbols)
        keys[i, 0], keys[i, 1] = take_up(residual, gradient, keeps)


@lru_cache(256)  # every step asks for the same
def _cut(sizes: tuple[int, ...], block: int, most: int) -> tuple[Rows, Numbers]:
    """The rows of parameters of some sizes, and of which parameter each is.

    Addresses are bytes from a parameter's first element.
    """
    shared, rows, parameters = Offsets.of(np.array(sizes, np.int64), block), [], []
    for number, (n, symbols, tables) in enumerate(zip(sizes, shared.symbols, shared.tables, strict=True)):
        for piece in pieces(n, block, most):
            begin, elements = 4 * piece.elements.start, piece.elements.stop - piece.elements.start
            symbol, table = symbols.start + piece.elements.start, tables.start + piece.blocks.start
            blocks = piece.blocks.stop - piece.blocks.start
            rows.append((begin, begin, elements, symbol, piece.block, table, blocks))
            parameters.append(number)
    return np.array(rows, np.int64).reshape(-1, _COLUMNS), np.array(parameters, np.int64)


class Table(NamedTuple):
    """Pieces of parameters."""

    rows: Rows
    parameters: Numbers
    """Of which each row is."""
    wide: list[Tensor]
    """Gradients that must live until kernels have returned."""


def table_of(work: Quantizing, most: int = PIECE) -> Table:
    """The pieces of parameters, of `most` elements at most."""
    wide = [each if each.dtype == torch.float32 else each.float() for each in work.gradients]
    cut, by = _cut(work.sizes, work.block, most)
    rows = cut.copy()
    residuals = np.array([0 if each is None else each.data_ptr() for each in work.residuals], np.int64)[by]
    rows[:, _RESIDUAL] = np.where(residuals, residuals + rows[:, _RESIDUAL], 0)
    rows[:, _GRADIENT] += np.array([each.data_ptr() for each in wide], np.int64)[by]
    return Table(rows, by, wide)


# Passes over it


def fits_pieces(work: Quantizing) -> bool:
    """Whether no block is larger than a piece."""
    return block_length(max(work.sizes, default=0), work.block) <= PIECE


def over_rows(work: Quantizing, kernel: Kernel, put_back: PutBack, threads: int) -> list[QuantizedPass]:
    """Quantizes parameters whose blocks fit pieces.

    Args:
        work: the parameters.
        kernel: takes up and quantizes rows.
        put_back: for parameters that are not finite.
        threads: how many may share the rows; no result depends on it.
    """
    rows, by, _wide = table_of(work)
    symbols, reports = host(work.symbols), np.zeros(len(rows), REPORT)
    parts = portions(rows[:, ELEMENTS], threads)
    run_all([partial(kernel, rows[at], symbols, reports[at]) for at in parts], threads)
    broken = np.zeros(len(work.gradients), np.bool_)
    broken[by[~reports["finite"]]] = True
    for number, row, blocks in zip(by, rows, reports["done"], strict=True):
        kept = work.residuals[number]
        if broken[number] and kept is not None:
            begin, count = (row[_RESIDUAL] - kept.data_ptr()) // 4, min(blocks * row[BLOCK], row[ELEMENTS])
            taken = np.array([[row[_SYMBOLS], count, row[_TABLES], blocks]], np.int64)
            put_back(symbols, int(row[BLOCK]), taken, kept.numpy()[begin : begin + count])
    return passes_of(by, reports["squares"], broken)


def take_up_all(work: Quantizing, threads: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Adds all gradients to their residuals.

    Returns:
        The lowest and the highest order key of each block's residual + gradient, int32 [blocks, 2]; and which
        parameters are not finite, bool [parameters].
    """
    rows, by, _wide = table_of(work)
    symbols, keys = host(work.symbols), np.empty((len(rows), 2), np.int32)
    parts = portions(rows[:, ELEMENTS], threads)
    run_all([partial(_take_up_rows, rows[at], symbols, keys[at]) for at in parts], threads)
    found = np.empty((work.offsets.all_blocks, 2), np.int32)
    found[:, 0], found[:, 1] = _NO_KEYS
    np.minimum.at(found[:, 0], rows[:, _TABLES], keys[:, 0])
    np.maximum.at(found[:, 1], rows[:, _TABLES], keys[:, 1])
    broken = np.zeros(len(work.gradients), np.bool_)
    broken[by[(keys[:, 0] < LOWEST_KEY) | (keys[:, 1] > HIGHEST_KEY)]] = True
    return found, broken


def over_taken_up(
    work: Quantizing,
    kernel: Callable[[Rows, NDArray[Any], NDArray[np.float64]], None],
    broken: NDArray[np.bool_],
    threads: int,
    at_once: int = 0,
) -> list[QuantizedPass]:
    """Quantizes what stands in residuals.

    Args:
        work: the parameters, which were taken up.
        kernel: quantizes rows; fills in symbols and the sums of squares kept.
        broken: bool [parameters], which are left out.
        threads: how many may share the rows; no result depends on it.
        at_once: elements of a piece, and that a kernel takes together; 0 for as many as threads make of them.
    """
    rows, by, _wide = table_of(work, at_once or PIECE)
    rows, by = rows[~broken[by]], by[~broken[by]]
    squares, elements = np.empty(len(rows)), rows[:, ELEMENTS]
    parts = portions(elements, 2, at_once) if at_once else portions(elements, threads)
    run_all([partial(kernel, rows[at], host(work.symbols), squares[at]) for at in parts], threads)
    return passes_of(by, squares, broken)


def passes_of(by: Numbers, squares: NDArray[np.float64], broken: NDArray[np.bool_]) -> list[QuantizedPass]:
    """From the squares of rows and the parameters that these are of."""
    sums = np.zeros(broken.size)
    np.add.at(sums, by, squares)  # in order
    sums[broken] = 0
    return list(map(QuantizedPass, sums.tolist(), broken.tolist()))


# Sums of squares


def _accumulate(typing_context: Any, total: Any, value: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fadd(given[0], given[1], flags=("reassoc", "nsz"))

    return total(total, value), generate


accumulate: Any = intrinsic(_accumulate)
"""total + value in a sum whose order is free, so that a loop may keep many partial sums.

For what is only reported: the last bits depend on the CPU.
"""


@njit(nogil=True, cache=True)
def squares_of(squares, values):  # type: ignore[no-untyped-def]
    """The sum of squares of float32 values: `squares`, their float32 sum, unless that left its range."""
    if np.float32(2.0**-60) < squares < np.float32(np.inf):
        return np.float64(squares)
    total = 0.0
    for j in range(values.size):
        total = accumulate(total, np.float64(values[j]) * np.float64(values[j]))
    return total
