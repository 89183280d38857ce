"""What is known of gradients and residuals that no pass goes over: samples, and a sum in one order.

A sample has one element in each of m equal strata. The place within a stratum comes from a hash of the
stratum's number, so the sample needs no generator state, is the same on every machine and device, and does
not fall into step with the rows of a layer.

A sum of squares is the same to the last bit on every machine, because its order is always the same. In a tile
of 4096 numbers lane t of 256 adds up numbers t, t + 256, ... in this order; then lanes t and t + 128 are
added, t and t + 64, down to one. The sums of the tiles are summed up in the same way, until one is left.
Missing numbers are zeros.
"""

from functools import lru_cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

_LANES, _ROUNDS = 256, 16
TILE = _LANES * _ROUNDS
_PIECE = 64 * TILE
"""Numbers that are worked on at once, so that they stay in the caches."""

_Doubles = NDArray[np.float64]


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


kept_positions = lru_cache(maxsize=64)(stratified_positions)  # finding them takes as long as looking there


def ordered_sum_of_squares(values: NDArray[np.float32]) -> float:
    """The sum of the squares of float32 [n], in float64."""
    sums = np.empty(-(-values.size // TILE))
    for begin in range(0, values.size, _PIECE):
        squares = np.square(values[begin : begin + _PIECE], dtype=np.float64)
        found = _tile_sums(squares)
        sums[begin // TILE : begin // TILE + found.size] = found
    while sums.size > 1:
        sums = _tile_sums(sums)
    return float(sums[0]) if sums.size else 0.0


def _tile_sums(numbers: _Doubles) -> _Doubles:
    """The sum of each tile."""
    tiles = -(-numbers.size // TILE)
    padded = np.zeros((tiles, _ROUNDS, _LANES))
    padded.reshape(-1)[: numbers.size] = numbers
    lanes: _Doubles = padded[:, 0].copy()
    for number in range(1, _ROUNDS):
        lanes += padded[:, number]
    width = _LANES
    while width > 1:
        width //= 2
        lanes = lanes[:, :width] + lanes[:, width:]
    return lanes[:, 0]
