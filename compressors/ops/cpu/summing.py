"""All workers' sparse updates into one dense array, block by block: each block is written to memory once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..array import readonly
from .bits import floats

_BLOCK = 8192
"""Elements that stay in the first-level cache while they are set to 0, added to and divided."""
_ONE = np.uint32(1)

TAUS, LEVELS, VALUES = range(3)
"""What an update adds at its words: +tau or -tau; whole multiples of it, signed; float32 values."""
_NO_LEVELS, _NO_FLOATS = readonly(np.empty(0, np.uint8)), readonly(np.empty(0, np.float32))


def amounts_of(beside: NDArray[Any]) -> tuple[int, NDArray[np.uint8], NDArray[np.float32]]:
    """What stands beside words (uint8 levels, float32 values, or nothing) as kernels take it."""
    array = readonly(beside)
    if array.dtype == np.float32:
        return VALUES, _NO_LEVELS, array
    return LEVELS if array.size else TAUS, array, _NO_FLOATS


def joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays one behind the other, to be read; one alone is not copied."""
    return readonly(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))


@njit(nogil=True, cache=True)
def _add(kind, low, at, s, stop, ends, shifts, taus, words, levels, values, block):  # type: ignore[no-untyped-def]
    """Adds words of a segment from `at` on that lie in a block; returns the next word, and its segment."""
    i = at
    while True:
        end, base, tau = ends[s], low - shifts[s], taus[s]
        while i < end and np.int64(words[i] >> _ONE) < base + block.size:
            if kind == VALUES:
                value = values[i]
            else:
                value = tau if kind == TAUS else np.float32(levels[i]) * tau
                value = -value if words[i] & _ONE else value
            block[np.int64(words[i] >> _ONE) - base] += value
            i += 1
        if i < end or s + 1 == stop:
            return i, s
        s += 1


@njit(nogil=True, cache=True)
def _divide(block, divisor, factor):  # type: ignore[no-untyped-def]
    """Divides a block; by a factor where that is not 0, which comes to the same then."""
    if factor != 0:
        for j in range(block.size):
            block[j] *= factor
    else:
        for j in range(block.size):
            block[j] /= divisor


@njit(nogil=True, cache=True)
def add_words(ends, rows, taus, words, kind, levels, values):  # type: ignore[no-untyped-def]
    """Adds an update to what stands for residuals in a table of rows; for arguments see `sum_updates`."""
    at, none = np.int64(0), np.zeros(1, np.int64)
    for s in range(ends.size):
        out = floats(rows[s, 0], rows[s, 2])
        last = ends[s : s + 1], none, taus[s : s + 1], words, levels, values, out
        _add(kind, rows[s, 3], at, none[0], none[0] + 1, *last)
        at = ends[s]


@njit(nogil=True, cache=True)
def sum_updates(stops, ends, shifts, taus, words, kind, levels, values, divisor, total):  # type: ignore[no-untyped-def]
    """Fills total, float32 [n], with the sum of updates, added in their order, divided by divisor.

    Args:
        stops: int64 [u], behind the last segment of each update.
        ends: int64 [s], where the words of each segment end.
        shifts: int64 [s], what has to be added to their positions to have elements of total.
        taus: float32 [s].
        words: uint32, position << 1 | sign (1 is minus), each update's ascending, one after the other.
        kind: TAUS, LEVELS or VALUES.
        levels: uint8, beside the words, or nothing.
        values: float32, likewise.
        divisor: float32; 1 for a sum.
        total: float32 [n].
    """
    segments, at = np.zeros(stops.size, np.int64), np.zeros(stops.size, np.int64)
    segments[1:] = stops[:-1]
    for u in range(1, stops.size):
        at[u] = ends[stops[u - 1] - 1]
    whole = np.int64(divisor)
    # The reciprocal of a power of two is exact, and multiplying by it rounds as dividing does.
    factor = np.float32(1) / divisor if whole & (whole - 1) == 0 else np.float32(0)
    for low in range(0, total.size, _BLOCK):
        block = total[low : low + _BLOCK]
        block[:] = np.float32(0)
        before = at.sum()
        for u in range(stops.size):
            at[u], segments[u] = _add(
                kind, low, at[u], segments[u], stops[u], ends, shifts, taus, words, levels, values, block
            )
        if divisor != 1 and at.sum() > before:
            _divide(block, divisor, factor)
