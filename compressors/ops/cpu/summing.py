"""All workers' sparse updates into one dense array, block by block: each block is written to memory once."""

import numpy as np
from numba import njit

from . import sparse

_BLOCK = 8192
"""Elements that stay in the first-level cache while they are set to 0, added to and divided."""
_FEW = 16
"""A block with fewer words than one in so many elements is divided at its words alone."""
_ONE, _BIT, _ALL = np.uint32(1), np.uint64(1), np.int64(63)

TAUS, LEVELS, VALUES = range(3)
"""What an update adds at its words: +tau or -tau; whole multiples of it, signed; float32 values."""


@njit(nogil=True, cache=True)
def _add(kind, base, tau, begin, end, words, levels, values, block):  # type: ignore[no-untyped-def]
    """Adds an update's words from `begin` on that lie in a block, which begins behind `base`.

    Returns:
        The first word behind the block.
    """
    i = begin
    if kind == TAUS:
        while i < end and np.int64(words[i] >> _ONE) < base + block.size:
            block[np.int64(words[i] >> _ONE) - base] += -tau if words[i] & _ONE else tau
            i += 1
    elif kind == LEVELS:
        while i < end and np.int64(words[i] >> _ONE) < base + block.size:
            value = np.float32(levels[i]) * tau
            block[np.int64(words[i] >> _ONE) - base] += -value if words[i] & _ONE else value
            i += 1
    else:
        while i < end and np.int64(words[i] >> _ONE) < base + block.size:
            block[np.int64(words[i] >> _ONE) - base] += values[i]
            i += 1
    return i


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
def _divide_at(bases, begins, ends, words, divisor, low, seen, block):  # type: ignore[no-untyped-def]
    """Divides a block where any update has a word: once, however many have."""
    seen[:] = np.uint64(0)
    for u in range(bases.size):
        for i in range(begins[u], ends[u]):
            j = np.int64(words[i] >> _ONE) + bases[u] - low
            bit = _BIT << np.uint64(j & _ALL)
            if not seen[j >> 6] & bit:
                seen[j >> 6] |= bit
                block[j] /= divisor


@njit(nogil=True, cache=True)
def add_updates(kind, ends, bases, taus, words, levels, values, total):  # type: ignore[no-untyped-def]
    """Adds updates of one kind to total, in their order; for arguments see `sum_updates`."""
    begin = np.int64(0)
    for u in range(ends.size):
        at, dense = slice(begin, ends[u]), total[bases[u] :]
        if kind == TAUS:
            sparse.add_taus(words[at], taus[u], dense)
        elif kind == LEVELS:
            sparse.add_levels(words[at], levels[at], taus[u], dense)
        else:
            sparse.add_values(words[at], values[at], dense)
        begin = ends[u]


@njit(nogil=True, cache=True)
def sum_updates(kinds, ends, bases, taus, words, levels, values, divisor, total):  # type: ignore[no-untyped-def]
    """Fills total with the sum of updates, added in their order, divided by divisor.

    Args:
        kinds: int64 [u], TAUS, LEVELS or VALUES.
        ends: int64 [u], where each update's words end, in `words`.
        bases: int64 [u], where each one's elements begin in total.
        taus: float32 [u].
        words: uint32, position << 1 | sign (1 is minus), each update's ascending, one after the other.
        levels: uint8, beside the words of every update with levels; whatever elsewhere.
        values: float32, likewise.
        divisor: float32; 1 for a sum.
        total: float32 [n].
    """
    begins, at = np.zeros(kinds.size, np.int64), np.zeros(kinds.size, np.int64)
    at[1:] = ends[:-1]
    whole = np.int64(divisor)
    # The reciprocal of a power of two is exact, and multiplying by it rounds as dividing does.
    factor = np.float32(1) / divisor if whole & (whole - 1) == 0 else np.float32(0)
    seen = np.zeros(_BLOCK // 64, np.uint64)
    for low in range(0, total.size, _BLOCK):
        block = total[low : low + _BLOCK]
        block[:] = np.float32(0)
        begins[:] = at
        for u in range(kinds.size):
            at[u] = _add(kinds[u], low - bases[u], taus[u], at[u], ends[u], words, levels, values, block)
        found = (at - begins).sum()
        if divisor == 1 or found == 0:
            continue
        if factor != 0 or found * _FEW > block.size:
            _divide(block, divisor, factor)
        else:
            _divide_at(bases, begins, at, words, divisor, low, seen, block)
