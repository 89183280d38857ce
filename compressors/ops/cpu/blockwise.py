"""What the quantizing passes share: blocks, the shares that threads work on, and what a pass reports.

A quantizing pass cuts n elements into blocks, each with its own table. A share is some whole blocks of one
parameter. Shares depend on n and the block's length alone, so no result depends on the number of threads.

A pass goes over memory once: a block's gradient is taken up into the residual, which finds its range, and
then what stands in the residual is quantized in place. A sum that is not finite may turn up behind blocks
that are done; their values are added to the residual again.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..array import host
from ..interface import QuantizedPass, Quantizing
from ..segments import PIECE, block_count, block_length
from .threads import portions, run_all

T = TypeVar("T")
LINE = 8192
"""Elements whose squares are summed in float32 before they go into a float64."""

_LARGEST = np.float32(np.finfo(np.float32).max)


# Order keys


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
_NO_KEYS = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
"""The lowest and the highest of no keys."""


@njit(nogil=True, cache=True)
def from_order_key(key):  # type: ignore[no-untyped-def]
    """The float32 of an order key."""
    return np.int32(key ^ np.int32((key >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


@njit(nogil=True, cache=True)
def keys_finite(low_key, high_key):  # type: ignore[no-untyped-def]
    """Whether nothing from the lowest to the highest order key is infinite or a NaN."""
    return low_key >= LOWEST_KEY and high_key <= HIGHEST_KEY


@njit(nogil=True, cache=True)
def take_up(residual, gradient, keeps):  # type: ignore[no-untyped-def]
    """Adds a gradient to a residual, but for elements whose sum is not finite.

    Args:
        residual: float32 [n], or the gradient, which stays as it is.
        gradient: float32 [n].
        keeps: whether there is a residual.

    Returns:
        The lowest and the highest order key of residual + gradient, which include what is not finite.
    """
    # Keys and not floats, and no min() or max(): so that the loops vectorize.
    low, high = _NO_KEYS
    if keeps:
        for j in range(gradient.size):
            a = residual[j] + gradient[j]
            key = order_key(a)
            residual[j] = a if abs(a) <= _LARGEST else residual[j]
            low = key if key < low else low
            high = key if key > high else high
    else:
        for j in range(gradient.size):
            key = order_key(gradient[j])
            low = key if key < low else low
            high = key if key > high else high
    return low, high


# Shares of parameters


class Share(NamedTuple):
    """Whole blocks of a parameter."""

    values: NDArray[np.float32]
    """Of its residual; of its gradient where there is none."""
    gradient: NDArray[np.float32]
    keeps: bool
    """Whether there is a residual."""
    symbols: NDArray[Any]
    block: int
    """Elements of a block; the last one may be shorter."""
    tables: slice
    """The blocks' tables."""
    parameter: int


def shares_of(work: Quantizing, most: int = PIECE) -> list[Share]:
    """The shares of parameters, of `most` elements at most, or of one block where that has more."""
    symbols, offsets, found = host(work.symbols), work.offsets, []
    for number, (residual, gradient) in enumerate(zip(work.residuals, work.gradients, strict=True)):
        wide = gradient.detach().float().numpy()
        values = wide if residual is None else residual.numpy()
        own, begin = symbols[offsets.symbols[number]], offsets.tables[number].start
        block = block_length(wide.size, work.block)
        together = max(1, most // block)
        for first in range(0, block_count(wide.size, block), together):
            at = slice(first * block, (first + together) * block)
            tables = slice(begin + first, min(begin + first + together, offsets.tables[number].stop))
            arrays = values[at], wide[at], residual is not None, own[at]
            found.append(Share(*arrays, block, tables, number))
    return found


def run_shares(parts: Sequence[Share], kernel: Callable[[Share], T], threads: int) -> list[T]:
    """What a kernel returns for each share."""
    groups = portions(np.array([part.gradient.size for part in parts], np.int64), threads)
    work = [partial(_run_each, kernel, parts[at]) for at in groups]
    return [each for group in run_all(work, threads) for each in group]


def _run_each(kernel: Callable[[Share], T], parts: Sequence[Share]) -> list[T]:
    return [kernel(part) for part in parts]


Report = tuple[float, int, bool]
"""Of a share: the sum of squares kept, of how many blocks there are symbols, and whether all sums of residual
and gradient are finite."""
PutBack = Callable[[NDArray[Any], int, slice, NDArray[np.float32]], None]
"""Adds what symbols stand for, in blocks of so many elements and with their tables, to a residual."""


def over_shares(
    work: Quantizing,
    kernel: Callable[[Share], Report],
    threads: int,
    put_back: PutBack | None = None,
    most: int = PIECE,
) -> list[QuantizedPass]:
    """Quantizes parameters.

    Args:
        work: the parameters.
        kernel: quantizes a share.
        threads: how many may work at once; no result depends on it.
        put_back: for parameters that are not finite; None where the kernel quantizes nothing of them.
        most: elements of a share, at most.
    """
    parts = shares_of(work, most)
    reports = run_shares(parts, kernel, threads)
    squares, broken = np.zeros(len(work.gradients)), np.zeros(len(work.gradients), np.bool_)
    for part, (kept, _, finite) in zip(parts, reports, strict=True):
        squares[part.parameter] += kept
        broken[part.parameter] |= not finite
    for part, (_, done, _) in zip(parts, reports, strict=True):
        if broken[part.parameter] and part.keeps and put_back is not None:
            tables, count = slice(part.tables.start, part.tables.start + done), done * part.block
            put_back(part.symbols[:count], part.block, tables, part.values[:count])
    squares[broken] = 0
    return list(map(QuantizedPass, squares.tolist(), broken.tolist()))


# Sums of squares


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
