"""The k largest magnitudes of a whole parameter on the CPU, exactly, at little more than a threshold pass.

A sample gives a magnitude that the k-th largest almost surely reaches. The fused threshold pass sends
everything from there on, the exact threshold is selected among those few, and what lies below it goes
back. Where the sample misled, everything goes back and the threshold is selected among all elements:
that costs time, but the outcome is the same.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..array import Floats32, Words
from ..interface import Selected
from ..limits import LARGEST_TAU, SMALLEST_TAU
from .bits import ELEMENTS, GRADIENT, Rows, floats
from .looking import stratified_positions
from .ranking import rank_of, tau_of
from .threshold import threshold_rows

SAMPLE = 1 << 14
"""Elements looked at for a first guess."""

_LARGEST = np.float32(np.finfo(np.float32).max)
_DEVIATIONS = 4
"""Standard deviations by which the guess aims low: it is too high once in some 30 000 passes."""


@njit(nogil=True, cache=True)
def _put_back(words, values, base, residual):  # type: ignore[no-untyped-def]
    """Returns values to the residual they were taken from; returns their sum of squares."""
    squares = 0.0
    for i in range(words.size):
        residual[np.int64(words[i] >> np.uint32(1)) - base] = values[i]
        squares += np.float64(values[i]) * np.float64(values[i])
    return squares


@njit(nogil=True, cache=True)
def trim(words, values, tau, keep, base, residual, squares):  # type: ignore[no-untyped-def]
    """Puts back all but the `keep` largest, by tau; returns how many stay, in front, and the squares."""
    ties = keep
    for value in values:
        ties -= abs(value) > tau
    stay = 0
    for i in range(words.size):
        word, value = words[i], values[i]
        equal = abs(value) == tau
        if abs(value) > tau or (equal and ties > 0):
            ties -= equal
            words[stay], values[stay] = word, value
            stay += 1
        else:
            residual[np.int64(word >> np.uint32(1)) - base] = value
            squares += np.float64(value) * np.float64(value)
    return stay, squares


def topk_rows(
    rows: Rows, counts: Sequence[int], words: Words, values: Floats32, threads: int, vectorized: bool
) -> Selected:
    """See `Ops.take_largest`, and `threshold_rows` for the arguments; `values` are float32.

    As tau it returns the smallest magnitude sent, but at most LARGEST_TAU; SMALLEST_TAU if nothing was.
    """
    ks = np.array(counts, np.int64)
    if ks.size and ks.min() < 0:
        raise ValueError(f"k must be 0 or more, not {ks.min()}")
    taus = np.full(len(rows), np.inf, np.float32)
    _guess_rows(rows, ks, taus)
    for i in np.flatnonzero((rows[:, ELEMENTS] > SAMPLE) & (ks > 0)).tolist():
        taus[i] = _low_guess(rows[i], int(ks[i]))
    selected = threshold_rows("wgt", rows, taus, words, values, threads, vectorized)
    ends, squares, broken, _ = selected
    lack = (np.diff(ends, prepend=0) < ks) & (taus > np.float32(SMALLEST_TAU)) & ~broken
    if lack.any():
        _give_back(rows, ks, lack, words, values, ends, taus)
        nothing = np.full(int(rows[:, ELEMENTS].max()), -0.0, np.float32)  # adding -0.0 changes no float
        again = rows.copy()
        again[:, GRADIENT] = nothing.ctypes.data
        selected = threshold_rows("wgt", again, taus, words, values, threads, vectorized)
        ends, squares = selected[:2]
    _trim_rows(rows, ks, words, values, ends, squares, broken, taus)
    return Selected(ends, squares, broken, taus)


@njit(nogil=True, cache=True)
def _tau_at(row, positions, rank):  # type: ignore[no-untyped-def]
    """`tau_of` |residual + gradient| at some positions of a parameter, where that is finite."""
    residual, gradient = floats(row[0], row[2]), floats(row[1], row[2])
    magnitudes, count = np.empty(positions.size, np.float32), 0
    for position in positions:
        magnitude = abs(residual[position] + gradient[position])
        magnitudes[count] = magnitude
        count += magnitude <= _LARGEST
    return tau_of(magnitudes[:count], rank)


@njit(nogil=True, cache=True)
def _guess_rows(rows, ks, taus):  # type: ignore[no-untyped-def]
    """What exactly k elements reach, of parameters of which all elements are looked at."""
    for i in range(rows.shape[0]):
        if rows[i, 2] <= SAMPLE and ks[i] > 0:
            taus[i] = _tau_at(rows[i], np.arange(rows[i, 2]), ks[i])


_places = lru_cache(256)(partial(stratified_positions, m=SAMPLE))  # the same parameters come again and again


def _low_guess(row: NDArray[np.int64], k: int) -> np.float32:
    """A threshold that at least k elements of a parameter reach, almost surely, by a sample."""
    n = int(row[ELEMENTS])
    expected = SAMPLE * k / n
    # Three more, for where hardly any are expected and their number is Poisson's.
    rank = math.ceil(expected + _DEVIATIONS * math.sqrt(expected) + 3)
    return np.float32(_tau_at(row, _places(n), rank))


@njit(nogil=True, cache=True)
def _give_back(rows, ks, lack, words, values, ends, taus):  # type: ignore[no-untyped-def]
    """Returns everything to the residuals; finds the exact tau of parameters whose guess was too high."""
    begin = 0
    for i in range(rows.shape[0]):
        residual = floats(rows[i, 0], rows[i, 2])
        _put_back(words[begin : ends[i]], values[begin : ends[i]], rows[i, 3], residual)
        begin = ends[i]
        if lack[i]:
            taus[i] = tau_of(np.abs(residual), ks[i])


@njit(nogil=True, cache=True)
def _trim_rows(rows, ks, words, values, ends, squares, broken, taus):  # type: ignore[no-untyped-def]
    """Keeps the k largest of what each parameter sent, nothing where it is not finite; finds its tau."""
    begin = sent = 0
    for i in range(rows.shape[0]):
        end, k, residual = ends[i], ks[i], floats(rows[i, 0], rows[i, 2])
        sent_words, sent_values = words[begin:end], values[begin:end]
        begin, stay, taus[i] = end, 0, SMALLEST_TAU
        if broken[i]:
            squares[i] += _put_back(sent_words, sent_values, rows[i, 3], residual)
        elif sent_values.size:
            tau = rank_of(np.abs(sent_values), min(sent_values.size, k))
            stay, more = trim(sent_words, sent_values, tau, k, rows[i, 3], residual, 0.0)
            squares[i] += more
            taus[i] = min(tau, np.float32(LARGEST_TAU))
        for j in range(stay):
            words[sent + j], values[sent + j] = sent_words[j], sent_values[j]
        sent += stay
        ends[i] = sent
