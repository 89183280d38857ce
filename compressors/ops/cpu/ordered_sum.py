"""A sum of squares that is the same to the last bit on every machine, because its order is always the same.

In a tile of 4096 numbers lane t of 256 adds up numbers t, t + 256, ... in this order; then lanes t and
t + 128 are added, t and t + 64, down to one. The sums of the tiles are summed up in the same way, until one
is left. Missing numbers are zeros.
"""

import numpy as np
from numpy.typing import NDArray

LANES, ROUNDS = 256, 16
TILE = LANES * ROUNDS
_PIECE = 64 * TILE
"""Numbers that are worked on at once, so that they stay in the caches."""

Doubles = NDArray[np.float64]


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


def _tile_sums(numbers: Doubles) -> Doubles:
    """The sum of each tile."""
    tiles = -(-numbers.size // TILE)
    padded = np.zeros((tiles, ROUNDS, LANES))
    padded.reshape(-1)[: numbers.size] = numbers
    lanes: Doubles = padded[:, 0].copy()
    for number in range(1, ROUNDS):
        lanes += padded[:, number]
    width = LANES
    while width > 1:
        width //= 2
        lanes = lanes[:, :width] + lanes[:, width:]
    return lanes[:, 0]
