"""Samples of gradients and residuals, and a sum of squares.

A sample has one element in each of m equal strata. The place within a stratum comes from a hash of the
stratum's number, so the sample needs no generator state, is the same on every machine and device, and does
not fall into step with the rows of a layer.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray


@njit(nogil=True, cache=True)
def hash_of(i):  # type: ignore[no-untyped-def]
    """MurmurHash3's 32-bit finalizer: every bit of i reaches every bit of the result."""
    h = np.uint32(i)
    h ^= h >> np.uint32(16)
    h = np.uint32(h * np.uint32(0x85EBCA6B))
    h ^= h >> np.uint32(13)
    h = np.uint32(h * np.uint32(0xC2B2AE35))
    return h ^ (h >> np.uint32(16))


@njit(nogil=True, cache=True)
def _fill(n, positions):  # type: ignore[no-untyped-def]
    m = positions.size
    for i in range(m):
        low = i * n // m
        high = (i + 1) * n // m
        positions[i] = low + np.int64(hash_of(i)) % (high - low)


def stratified_positions(n: int, m: int) -> NDArray[np.int64]:
    """Positions of a sample of m among n elements, ascending and distinct.

    Position i is low + hash(i) mod (high - low), where low = floor(i n / m), high = floor((i + 1) n / m)
    and hash is MurmurHash3's 32-bit finalizer: h ^= h >> 16; h *= 0x85EBCA6B; h ^= h >> 13;
    h *= 0xC2B2AE35; h ^= h >> 16, all modulo 2^32.

    Args:
        n: how many elements there are, less than 2^32.
        m: how many of them to take, 0 to n.

    Returns:
        int64 [m].

    Raises:
        ValueError: n or m is out of its range.
    """
    if not 0 <= m <= n < 2**32:
        raise ValueError(f"cannot take {m} of {n} elements: 0 <= m <= n < 2^32 must hold")
    positions = np.empty(m, np.int64)
    _fill(n, positions)
    return positions


@njit(nogil=True, cache=True)
def scaled_squares(values, scale):  # type: ignore[no-untyped-def]
    """The sum of the squares of float32 [n] times a power of two, each as a whole number."""
    total = np.int64(0)
    for value in values:
        total += np.int64(np.float64(value) * np.float64(value) * scale)
    return total
