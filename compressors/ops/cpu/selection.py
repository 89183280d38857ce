"""The k-th largest of a few thousand magnitudes, by counting: faster than a partition, in one call.

Bits of floats that are not negative are ordered as the floats are. A first pass counts them by their
leading 11 bits, two more by 10 bits each among those that share the bits found so far.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


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
        each = bits[i]
        if (each >> shift) & kept == digit:
            into[count] = each
            count += 1


@njit(nogil=True, cache=True)
def rank_of(magnitudes, rank):  # type: ignore[no-untyped-def]
    """`ranked` for kernels, which look at nothing."""
    bits, counts = magnitudes.view(np.uint32), np.empty(2048, np.int32)
    digit, rank, size = _digit(bits, bits.size, np.uint32(20), np.uint32(2047), rank, counts)
    candidates = np.empty(size, np.uint32)
    _keep(bits, bits.size, np.uint32(20), np.uint32(2047), digit, candidates)
    found = digit << 20
    for shift in (10, 0):
        digit, rank, count = _digit(candidates, size, np.uint32(shift), np.uint32(1023), rank, counts[:1024])
        _keep(candidates, size, np.uint32(shift), np.uint32(1023), digit, candidates)
        found, size = found | digit << shift, count
    candidates[0] = np.uint32(found)
    return candidates.view(np.float32)[0]


def ranked(magnitudes: NDArray[np.float32], rank: int) -> np.float32:
    """The rank-th largest of m magnitudes.

    Args:
        magnitudes: contiguous float32 [m], none negative (nor -0.0), none NaN.
        rank: 1 to m.

    Raises:
        ValueError: there is no such rank.
    """
    if not 1 <= rank <= magnitudes.size:
        raise ValueError(f"rank {rank} of {magnitudes.size} magnitudes: 1 to {magnitudes.size} are there")
    return np.float32(rank_of(magnitudes, rank))
