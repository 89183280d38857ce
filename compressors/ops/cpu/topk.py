"""The k largest magnitudes of a whole parameter on the CPU, exactly, at little more than a threshold pass.

A sample gives a magnitude that the k-th largest almost surely reaches. The fused threshold pass sends
everything from there on, the exact threshold is selected among those few, and what lies below it goes
back. Where the sample misled, everything goes back and the threshold is selected among all elements:
that costs time, but the outcome is the same.

Magnitudes of a rank are found by counting, faster than by a partition: bits of floats that are not negative
are ordered as the floats are. A first pass counts them by their leading 11 bits, two more by 10 bits each
among those that share the bits found so far.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..array import Floats32, Words
from ..interface import LARGEST_TAU, SMALLEST_TAU, Selected
from ..uniform import positions_of
from .bits import ELEMENTS, GRADIENT, Rows, floats
from .threshold import threshold_rows

SAMPLE = 1 << 14
"""Elements looked at for a first guess."""

_LARGEST, _ZERO = np.float32(np.finfo(np.float32).max), np.float32(0)
_SORTED = 128
"""Magnitudes up to which sorting costs less than counting."""
_DEVIATIONS = 4
"""Standard deviations by which the guess aims low: it is too high once in some 30 000 passes."""


# The magnitude of a rank


@njit(nogil=True, cache=True)
def _digit(bits, size, shift, kept, rank, counts):  # type: ignore[no-untyped-def]
    """The digit of the rank-th largest (from 1), its rank among those with this digit, their number."""
    counts[:] = 0
    for i in range(size):
        counts[(bits[i] >> shift) & kept] += 1
    digit = counts.size - 1
    while rank > counts[digit]:
        rank -= counts[digit]
        digit -= 1
    return digit, rank, counts[digit]


@njit(nogil=True, cache=True)
def _keep(bits, size, shift, kept, digit, into):  # type: ignore[no-untyped-def]
    """Moves those with a digit to the front of `into`, which may be `bits`."""
    count = 0
    for i in range(size):
        value = bits[i]
        if (value >> shift) & kept == digit:
            into[count] = value
            count += 1


@njit(nogil=True, cache=True)
def rank_of(magnitudes, rank):  # type: ignore[no-untyped-def]
    """The rank-th largest (1 to m) of float32 [m], none of them negative, -0.0 or NaN."""
    if magnitudes.size <= _SORTED:
        return np.sort(magnitudes)[-rank]
    bits, counts = magnitudes.view(np.uint32), np.empty(2048, np.int32)
    digit, rank, size = _digit(bits, bits.size, np.uint32(20), np.uint32(2047), rank, counts)
    candidates = np.empty(size, np.uint32)
    _keep(bits, bits.size, np.uint32(20), np.uint32(2047), digit, candidates)
    prefix = digit << 20
    for shift in (10, 0):
        digit, rank, count = _digit(candidates, size, np.uint32(shift), np.uint32(1023), rank, counts[:1024])
        _keep(candidates, size, np.uint32(shift), np.uint32(1023), digit, candidates)
        prefix, size = prefix | digit << shift, count
    candidates[0] = np.uint32(prefix)
    return candidates.view(np.float32)[0]


@njit(nogil=True, cache=True)
def tau_of(magnitudes, rank):  # type: ignore[no-untyped-def]
    """The rank-th largest (from 1), between the smallest and the largest tau; the smallest if too few."""
    if rank > magnitudes.size:
        return np.float32(SMALLEST_TAU)
    return min(max(rank_of(magnitudes, rank), np.float32(SMALLEST_TAU)), np.float32(LARGEST_TAU))


@njit(nogil=True, cache=True)
def ranked(samples, ends, ranks, magnitudes, broken):  # type: ignore[no-untyped-def]
    """The magnitude of a rank among samples, which end at `ends`, and whether one is not finite."""
    begin = 0
    for i in range(ends.size):
        sample = np.abs(samples[begin : ends[i]])
        broken[i] = not (sample <= _LARGEST).all()
        magnitudes[i] = _ZERO if broken[i] else rank_of(sample, ranks[i])
        begin = ends[i]


# The largest magnitudes


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


@lru_cache(256)  # the same parameters come again and again
def _places(n: int) -> NDArray[np.int64]:
    return positions_of(np.array([n]), np.array([SAMPLE]))


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
