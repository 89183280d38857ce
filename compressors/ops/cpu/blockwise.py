"""What the quantizing passes share: blocks, the pieces they are worked on in, and what a pass reports.

A quantizing pass cuts n elements into blocks, each with its own table. Threads do not share out blocks
but pieces: some thousand elements that are either whole blocks or a part of one. Pieces depend on n
and the block's length alone, so no result depends on the number of threads.

A pass goes over memory once where blocks fit a cache: a block's gradient is taken up into the residual,
which finds its range, and then what stands in the residual is quantized in place. A sum that is not
finite may turn up behind blocks that are done; their values are added to the residual again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from ..segments import block_count, block_length
from .threads import Result, run_all

PIECE = 1 << 20
"""Elements of a piece, at most."""

LINE = 8192
"""Elements whose squares are summed in float32 before they go into a float64."""

_LARGEST = np.float32(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Piece:
    """Whole blocks, or a part of one."""

    elements: slice
    blocks: slice
    block: int
    """Elements of a block as far as it lies in this piece; the last one may be shorter."""

    @property
    def count(self) -> int:
        """How many blocks."""
        return int(self.blocks.stop - self.blocks.start)


@lru_cache(1024)  # a step asks for the same of every parameter, twice
def pieces(n: int, block: int, most: int = PIECE) -> tuple[Piece, ...]:
    """The pieces, of `most` elements at most, of n elements in blocks of `block` (0: one), in order."""
    block = block_length(n, block)
    if block <= most:
        step = most // block
        blocks = block_count(n, block)
        return tuple(
            Piece(slice(b * block, min((b + step) * block, n)), slice(b, min(b + step, blocks)), block)
            for b in range(0, blocks, step)
        )
    return tuple(
        Piece(slice(low, min(low + most, end)), slice(b, b + 1), most)
        for b in range(block_count(n, block))
        for end in [min((b + 1) * block, n)]
        for low in range(b * block, end, most)
    )


def part(array: NDArray[np.float32] | None, elements: slice) -> NDArray[np.float32] | None:
    """The elements of a residual, if there is one; for kernels, too."""
    return None if array is None else array[elements]


@overload(part)
def _part(array, elements):  # type: ignore[no-untyped-def]
    # In a kernel the conditional expression would have an optional type, with which loops do not vectorize.
    if isinstance(array, types.NoneType):
        return lambda array, elements: None
    return lambda array, elements: array[elements]


def over(parts: Sequence[Piece], work: Callable[[Piece], Result], threads: int) -> list[Result]:
    """Does `work` on every piece; results are in the pieces' order."""
    if len(parts) == 1:  # most parameters are small, and a list of one call is longer than the call
        return [work(parts[0])]
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
NO_KEYS = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
"""The lowest and the highest of no keys."""


@njit(nogil=True, cache=True)
def from_order_key(key):  # type: ignore[no-untyped-def]
    """The float32 of an order key."""
    return np.int32(key ^ np.int32((key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@njit(nogil=True, cache=True)
def keys_finite(low_key, high_key):  # type: ignore[no-untyped-def]
    """Whether nothing from the lowest to the highest order key is infinite or a NaN."""
    return low_key >= LOWEST_KEY and high_key <= HIGHEST_KEY


def finite_each(low_keys: NDArray[np.int32], high_keys: NDArray[np.int32]) -> NDArray[np.bool_]:
    """`keys_finite` of many."""
    return (low_keys >= LOWEST_KEY) & (high_keys <= HIGHEST_KEY)


@njit(nogil=True, cache=True)
def taken_up(residual, gradient):  # type: ignore[no-untyped-def]
    """One element's residual + gradient, or residual where the sum is not finite; the sum's order key."""
    a = residual + gradient
    return a if abs(a) <= _LARGEST else residual, order_key(a)


@njit(nogil=True, cache=True)
def take_up(residual, gradient):  # type: ignore[no-untyped-def]
    """Adds a gradient to a residual, but for elements whose sum is not finite.

    Returns:
        The lowest and the highest order key of residual + gradient, which include what is not finite.
    """
    # Keys and not floats, and no min() or max(): so that the loop vectorizes.
    low, high = NO_KEYS
    for j in range(gradient.size):
        if residual is None:
            key = order_key(gradient[j])
        else:
            residual[j], key = taken_up(residual[j], gradient[j])
        low = key if key < low else low
        high = key if key > high else high
    return low, high


@njit(nogil=True, cache=True)
def take_up_rest(residual, gradient, first):  # type: ignore[no-untyped-def]
    """`take_up` from an element on, if there is a residual to keep it in."""
    if residual is not None:
        take_up(residual[first:], gradient[first:])


@njit(nogil=True, cache=True)
def _take_up_blocks(residual, gradient, block, low_keys, high_keys):  # type: ignore[no-untyped-def]
    for b in range(low_keys.size):
        at = slice(b * block, (b + 1) * block)
        low_keys[b], high_keys[b] = take_up(part(residual, at), gradient[at])


def take_up_all(
    residual: NDArray[np.float32] | None, gradient: NDArray[np.float32], block: int, threads: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """`take_up` over an array; without a residual it only looks.

    Returns:
        Lowest and highest order key of every block, both int32 [blocks].
    """
    parts, blocks = pieces(gradient.size, block), block_count(gradient.size, block)
    low_keys, high_keys = (np.full(blocks, key, np.int32) for key in NO_KEYS)

    def work(piece: Piece) -> NDArray[np.int32]:
        keys = np.empty((2, piece.count), np.int32)
        at = piece.elements
        _take_up_blocks(part(residual, at), gradient[at], piece.block, keys[0], keys[1])
        return keys

    for piece, (low, high) in zip(parts, over(parts, work, threads), strict=True):
        np.minimum(low_keys[piece.blocks], low, out=low_keys[piece.blocks])
        np.maximum(high_keys[piece.blocks], high, out=high_keys[piece.blocks])
    return low_keys, high_keys


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
