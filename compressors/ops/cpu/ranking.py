"""Magnitudes of a rank among a few thousand, exactly.

They are found by counting, faster than by a partition: bits of floats that are not negative are ordered as
the floats are. A first pass counts them by their leading 11 bits, two more by 10 bits each among those that
share the bits found so far.
"""

import numpy as np
from numba import njit

from ..limits import LARGEST_TAU, SMALLEST_TAU

_LARGEST, _ZERO = np.float32(np.finfo(np.float32).max), np.float32(0)
_SORTED = 128
"""Magnitudes up to which sorting costs less than counting."""


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
