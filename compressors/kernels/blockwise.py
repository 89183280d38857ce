"""What the quantizing passes share: blocks, the pieces they are worked on in, and what a pass reports.

A quantizing pass cuts n elements into blocks, each with its own table. Threads do not share out blocks
but pieces: some thousand elements that are either whole blocks or a part of one. Pieces depend on n
and the block's length alone, so no result depends on the number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray

from .threads import Result, run_all

INFINITY = 0x7F800000
"""The bits of infinity; those of a NaN without its sign are larger."""

PIECE = 1 << 20
"""Elements of a piece, at most."""

LINE = 2048
"""Elements whose squares are summed in float32 before they go into a float64."""


@dataclass(frozen=True)
class QuantizedPass:
    """What one quantizing pass over one parameter came to."""

    residual_squares: float
    """Sum of squares of the residual that was kept; 0.0 without one."""
    nonfinite: bool
    """Whether residual + gradient held a NaN or Inf; then residual, symbols and tables are not to be used:
    the residual is as it was, nothing may be sent."""


def reported(squares: list[float]) -> QuantizedPass:
    """The report of a pass from what its pieces kept; one that is not finite met a sum that is not."""
    total = sum(squares, 0.0)
    return QuantizedPass(total, False) if total < np.inf else QuantizedPass(0.0, True)


@dataclass(frozen=True)
class Piece:
    """Whole blocks, or a part of one."""

    elements: slice
    blocks: slice
    block: int
    """Elements of a block as far as it lies in this piece; the last one may be shorter."""
    whole: bool
    """Whether blocks lie in this piece as a whole; the same for all pieces of an array."""


def block_length(n: int, block: int) -> int:
    """Elements of a block: `block`, or n where that is 0 or too large. At least 1."""
    return max(1, n if block == 0 else min(block, n))


def block_count(n: int, block: int) -> int:
    """How many blocks n elements make; the last one may be shorter."""
    return -(-n // block_length(n, block))


def pieces(n: int, block: int, most: int = PIECE) -> list[Piece]:
    """The pieces, of `most` elements at most, of n elements in blocks of `block` (0: one), in order."""
    block = block_length(n, block)
    if block <= most:
        step = most // block
        blocks = block_count(n, block)
        return [
            Piece(slice(b * block, min((b + step) * block, n)), slice(b, min(b + step, blocks)), block, True)
            for b in range(0, blocks, step)
        ]
    return [
        Piece(slice(low, min(low + most, end)), slice(b, b + 1), most, False)
        for b in range(block_count(n, block))
        for end in [min((b + 1) * block, n)]
        for low in range(b * block, end, most)
    ]


def part(array: NDArray[np.float32] | None, elements: slice) -> NDArray[np.float32] | None:
    """The elements of a residual, if there is one."""
    return None if array is None else array[elements]


def over(parts: list[Piece], work: Callable[[Piece], Result], threads: int) -> list[Result]:
    """Does `work` on every piece; results are in the pieces' order."""
    return run_all([partial(work, piece) for piece in parts], threads)


@njit(nogil=True, cache=True)
def order_key(a):  # type: ignore[no-untyped-def]
    """An int32 that orders as the float32 a does; -0.0 comes right before 0.0.

    Infinities and NaNs lie outside [LOWEST_KEY, HIGHEST_KEY].
    """
    bits = np.float32(a).view(np.int32)
    return np.int32(bits ^ np.int32((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


HIGHEST_KEY = 0x7F7FFFFF
"""The order key of the largest float32."""
LOWEST_KEY = -HIGHEST_KEY - 1
"""The order key of the most negative float32."""


@njit(nogil=True, cache=True)
def from_order_key(key):  # type: ignore[no-untyped-def]
    """The float32 of an order key."""
    return np.int32(key ^ np.int32((key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@njit(nogil=True, cache=True)
def largest_magnitude_bits(residual, gradient):  # type: ignore[no-untyped-def]
    """The largest magnitude's bits, an int32; of infinity at least if any sum is not finite."""
    largest = np.int32(0)
    for j in range(gradient.size):
        a = gradient[j] if residual is None else residual[j] + gradient[j]
        magnitude = np.int32(np.float32(a).view(np.int32) & np.int32(0x7FFFFFFF))
        largest = magnitude if magnitude > largest else largest  # max() would not vectorize
    return largest


def all_finite(
    parts: list[Piece],
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    threads: int,
    residual_finite: bool = False,
) -> bool:
    """Whether every residual + gradient is finite; only reads.

    A residual that is known to be finite need not be read as long as every gradient is less than 2^103:
    even added to the largest float32, that is rounded away.
    """

    def largest(piece: Piece, r: NDArray[np.float32] | None) -> int:
        return int(largest_magnitude_bits(part(r, piece.elements), gradient[piece.elements]))

    if residual is not None and residual_finite:
        alone = max(over(parts, partial(largest, r=None), threads), default=0)
        if alone < (103 + 127) << 23 or alone >= INFINITY:
            return alone < INFINITY
    return max(over(parts, partial(largest, r=residual), threads), default=0) < INFINITY


def _accumulate(typing_context: Any, total: Any, value: Any) -> Any:

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fadd(given[0], given[1], flags=("reassoc", "nsz"))

    return total(total, value), generate


accumulate: Any = intrinsic(_accumulate)
"""total + value in a sum whose order is free, so that a loop may keep many partial sums.

For what is only reported: the last bits depend on the CPU.
"""


@njit(nogil=True, cache=True)
def squares_of(squares, values):  # type: ignore[no-untyped-def]
    """The sum of squares of float32 values: `squares`, their float32 sum, unless that left its range."""
    if np.float32(2.0**-60) < squares < np.float32(np.inf):
        return np.float64(squares)
    total = 0.0
    for j in range(values.size):
        total = accumulate(total, np.float64(values[j]) * np.float64(values[j]))
    return total
