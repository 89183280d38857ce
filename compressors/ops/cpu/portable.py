"""The fused threshold pass in plain numba, for any CPU.

Each block of elements is looked at twice while it lies in the first-level cache: once to count what
reaches tau, which vectorizes, and then either to add (most blocks) or to walk through element by
element. Same results, bit for bit, as `avx512.py`.
"""

import numpy as np
from numba import njit

from .rows import floats

_BLOCK = 128
_LARGEST = np.float32(np.finfo(np.float32).max)
_ZERO = np.float32(0)
_TOP_LEVEL = np.float32(255)


@njit(nogil=True, cache=True)
def _reached(residual, gradient, tau):  # type: ignore[no-untyped-def]
    count = np.uint32(0)
    for j in range(residual.size):
        # Not "abs >= tau": a NaN must be counted, so that it is found.
        count += np.uint32(not (abs(residual[j] + gradient[j]) < tau))
    return count


@njit(nogil=True, cache=True)
def _add(residual, gradient):  # type: ignore[no-untyped-def]
    for j in range(residual.size):
        residual[j] += gradient[j]


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def _sum_of_squares(block):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for j in range(block.size):
        total += block[j] * block[j]
    return total


@njit(nogil=True, cache=True)
def wgt(residual, gradient, start, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """WGT over residual[start:]: Anoosheh, section 2.1 (a).

    Args:
        residual: float32 [n]; becomes residual + gradient less what is sent. An element whose sum is
            not finite keeps its old residual.
        gradient: float32 [n].
        start: where to begin; what lies before was done by another pass.
        tau: float32, greater than 0.
        base: index of residual[0] in the update.
        words: uint32; from `sent` on receives index << 1 | sign of every element sent, in order.
        values: float32 (wgt), uint8 (qgt) or anything (bgt); receives the values beside the words.
        sent: how many words there are already.
        tally: float64 [2]; gains the residual's sum of squares, and more than 0 if any element was
            not finite.

    Returns:
        How many words there are now.
    """
    for low in range(start, residual.size, _BLOCK):
        r, g = residual[low : low + _BLOCK], gradient[low : low + _BLOCK]
        if _reached(r, g, tau) == 0:
            _add(r, g)
        else:
            for j in range(r.size):
                a = r[j] + g[j]
                if abs(a) < tau:
                    r[j] = a
                elif abs(a) <= _LARGEST:
                    words[sent] = np.uint32((base + low + j) << 1) | np.uint32(a < _ZERO)
                    values[sent] = a
                    sent += 1
                    r[j] = _ZERO
                else:
                    tally[1] += 1
        tally[0] += _sum_of_squares(r)
    return sent


@njit(nogil=True, cache=True)
def bgt(residual, gradient, start, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """BGT over residual[start:]: Anoosheh, section 2.1 (b). Arguments as for `wgt`."""
    for low in range(start, residual.size, _BLOCK):
        r, g = residual[low : low + _BLOCK], gradient[low : low + _BLOCK]
        if _reached(r, g, tau) == 0:
            _add(r, g)
        else:
            for j in range(r.size):
                a = r[j] + g[j]
                if abs(a) < tau:
                    r[j] = a
                elif abs(a) <= _LARGEST:
                    words[sent] = np.uint32((base + low + j) << 1) | np.uint32(a < _ZERO)
                    sent += 1
                    r[j] = a + tau if a < _ZERO else a - tau
                else:
                    tally[1] += 1
        tally[0] += _sum_of_squares(r)
    return sent


@njit(nogil=True, cache=True)
def qgt(residual, gradient, start, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """QGT over residual[start:]: Anoosheh, section 2.1 (c), as the text means it.

    The magnitude in whole multiples of tau, at most 255 of them, sign kept. Arguments as for `wgt`.
    """
    for low in range(start, residual.size, _BLOCK):
        r, g = residual[low : low + _BLOCK], gradient[low : low + _BLOCK]
        if _reached(r, g, tau) == 0:
            _add(r, g)
        else:
            for j in range(r.size):
                a = r[j] + g[j]
                if abs(a) < tau:
                    r[j] = a
                elif abs(a) <= _LARGEST:
                    words[sent] = np.uint32((base + low + j) << 1) | np.uint32(a < _ZERO)
                    level = min(np.float32(np.floor(abs(a) / tau)), _TOP_LEVEL)
                    values[sent] = np.uint8(level)
                    sent += 1
                    quantum = level * tau
                    r[j] = a + quantum if a < _ZERO else a - quantum
                else:
                    tally[1] += 1
        tally[0] += _sum_of_squares(r)
    return sent


@njit(nogil=True, cache=True)
def strom(residual, gradient, start, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """Strom, section 2.6, over residual[start:]: what exceeds tau is sent. Arguments as for `wgt`."""
    for low in range(start, residual.size, _BLOCK):
        r, g = residual[low : low + _BLOCK], gradient[low : low + _BLOCK]
        if _reached(r, g, tau) == 0:
            _add(r, g)
        else:
            for j in range(r.size):
                a = r[j] + g[j]
                if abs(a) <= tau:
                    r[j] = a
                elif abs(a) <= _LARGEST:
                    words[sent] = np.uint32((base + low + j) << 1) | np.uint32(a < _ZERO)
                    sent += 1
                    r[j] = a + tau if a < _ZERO else a - tau
                else:
                    tally[1] += 1
        tally[0] += _sum_of_squares(r)
    return sent


@njit(nogil=True, cache=True)
def wgt_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """WGT over all parameters of a table, one after the other.

    Args:
        rows: see `rows.py`.
        taus: float32 [m].
        words: as for `wgt`.
        values: as for `wgt`.
        sent: how many words there are already.
        ends: int64 [m], receives how many there are after each parameter.
        tallies: float64 [m, 2]; as for `wgt`.
    """
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        sent = wgt(residual, gradient, 0, taus[i], rows[i, 3], words, values, sent, tallies[i])
        ends[i] = sent


@njit(nogil=True, cache=True)
def bgt_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """BGT over all parameters of a table; arguments as for `wgt_rows`."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        sent = bgt(residual, gradient, 0, taus[i], rows[i, 3], words, values, sent, tallies[i])
        ends[i] = sent


@njit(nogil=True, cache=True)
def qgt_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """QGT over all parameters of a table; arguments as for `wgt_rows`."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        sent = qgt(residual, gradient, 0, taus[i], rows[i, 3], words, values, sent, tallies[i])
        ends[i] = sent


@njit(nogil=True, cache=True)
def strom_rows(rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """Strom over all parameters of a table; arguments as for `wgt_rows`."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        sent = strom(residual, gradient, 0, taus[i], rows[i, 3], words, values, sent, tallies[i])
        ends[i] = sent
