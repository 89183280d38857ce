"""What the quantizing passes share: blocks, shares of threads, reports, and conversions to short floats.

A quantizing pass cuts n elements into blocks, each with its own table. A share is some whole blocks of one
parameter. Shares depend on n and the block's length alone, so no result depends on the number of threads.

A pass goes over memory once: a block's gradient is taken up into the residual, which finds its range, and
then what stands in the residual is quantized in place. A sum that is not finite may turn up behind blocks
that are done; their values are added to the residual again.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
from numba import njit
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..array import Floats64
from ..interface import Batch, Kept, Quantizing
from .bits import floats
from .threads import portions, run_all

PIECE = 1 << 20
"""Elements of a share, at most."""
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
    """Adds a gradient, float32 [n], to a residual, but for elements whose sum is not finite.

    Without a residual (`keeps`) the gradient, given twice, stays as it is.

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


SHARE_COLUMNS = 8
RESIDUAL, GRADIENT, ELEMENTS, SYMBOL, BLOCK, FIRST_BLOCK, BLOCKS, PARAMETER = range(SHARE_COLUMNS)
"""Columns of a share: the addresses of its residual (0 without one) and gradient, its elements, its first
symbol, elements of a block (the last one may be shorter), its first block, how many blocks, and the index of
the parameter. Compiled code takes them as constants."""
Shares = NDArray[np.int64]


def shares_of(batch: Batch, block: int = 0, most: int = PIECE) -> Shares:
    """The shares of parameters, int64 [s, 8]: of `most` elements, or of one block where that has more."""
    if (known := batch.laid_out.get((block, most))) is not None:
        return cast(Shares, known)
    offsets = batch.offsets(block)
    rows, lengths = batch.rows, np.maximum(1, np.minimum(batch.sizes, block or batch.sizes))
    together = np.maximum(1, most // lengths)
    counts = -(-offsets.blocks // together)
    numbers = np.repeat(np.arange(len(rows)), counts)
    first_blocks = np.arange(numbers.size) - np.repeat(np.cumsum(counts) - counts, counts)
    first_blocks *= together[numbers]
    begins = first_blocks * lengths[numbers]
    shares = np.empty((numbers.size, SHARE_COLUMNS), np.int64)
    shares[:, [RESIDUAL, GRADIENT]] = rows[numbers, :2] + 4 * begins[:, None] * (rows[numbers, :2] > 0)
    shares[:, ELEMENTS] = np.minimum(offsets.sizes[numbers] - begins, (together * lengths)[numbers])
    shares[:, SYMBOL] = rows[numbers, 3] + begins
    shares[:, BLOCK] = lengths[numbers]
    shares[:, FIRST_BLOCK] = offsets.firsts[numbers] + first_blocks
    shares[:, BLOCKS] = np.minimum(offsets.blocks[numbers] - first_blocks, together[numbers])
    shares[:, PARAMETER] = numbers
    batch.laid_out[block, most] = shares
    return shares


@njit(nogil=True, cache=True, inline="always")
def operands(share):  # type: ignore[no-untyped-def]
    """What stands in the residual, or the gradient without one; the gradient; whether there is a residual."""
    keeps = share[RESIDUAL] != 0
    return (
        floats(share[RESIDUAL] if keeps else share[GRADIENT], share[ELEMENTS]),
        floats(share[GRADIENT], share[ELEMENTS]),
        keeps,
    )


PutBack = Callable[[Shares], None]
"""Adds what the symbols of shares stand for to their residuals."""


def over_shares(
    work: Quantizing,
    kernel: Callable[[Shares, NDArray[np.float64]], None],
    threads: int,
    put_back: PutBack | None = None,
    most: int = PIECE,
) -> Kept:
    """Quantizes parameters, whose gradients are float32; no result depends on the threads.

    A kernel quantizes shares of at most `most` elements, and fills in float64 [s, 3]: the sum of squares
    kept, of how many blocks there are symbols, and whether all sums of residual and gradient are finite.
    `put_back` is for shares that are not; None if nothing of these is quantized.
    """
    shares, m = shares_of(work.batch, work.block, most), len(work.batch)
    reports = np.zeros((len(shares), 3))
    groups = portions(shares[:, ELEMENTS], threads)
    run_all([partial(kernel, shares[at], reports[at]) for at in groups], threads)
    broken = np.bincount(shares[:, PARAMETER], 1 - reports[:, 2], m) > 0
    squares: Floats64 = np.bincount(shares[:, PARAMETER], reports[:, 0], m).astype(np.float64, copy=False)
    if broken.any():
        squares[broken] = 0
        back = shares[broken[shares[:, PARAMETER]] & (shares[:, RESIDUAL] != 0)]
        done = reports[broken[shares[:, PARAMETER]] & (shares[:, RESIDUAL] != 0), 1].astype(np.int64)
        if put_back is not None:
            back[:, BLOCKS], back[:, ELEMENTS] = done, np.minimum(back[:, ELEMENTS], done * back[:, BLOCK])
            put_back(back)
    return Kept(squares, broken)


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


# Shorter floats, in arithmetic that vectorizes. Bits are int32 throughout. A float32 is rounded to nearest,
# ties to even, subnormal numbers included; what is larger than the largest finite number becomes that number.

_MAGNITUDE = np.int32(0x7FFFFFFF)
_SIGN, _EXPONENT = np.int32(-0x80000000), np.int32(0x7F800000)
_SIGN8, _SIGN16, _HIGH16 = np.int32(0x80), np.int32(0x8000), np.int32(-0x10000)
# The largest finite numbers and the exponents of the smallest normal ones, as bits of float32.
_LARGEST16, _LARGEST8 = np.int32(np.float32(65504).view(np.int32)), np.int32(np.float32(448).view(np.int32))
_LEAST16, _LEAST8 = np.int32(113 << 23), np.int32(121 << 23)
_LARGEST_BF16 = np.int32(0x7F7F0000).view(np.float32)
_SUBNORMAL16, _SUBNORMAL8 = np.float32(2.0**-24), np.float32(2.0**-9)


@njit(nogil=True, cache=True)
def _bits(a):  # type: ignore[no-untyped-def]
    return np.float32(a).view(np.int32)


@njit(nogil=True, cache=True)
def _float(bits):  # type: ignore[no-untyped-def]
    return np.int32(bits).view(np.float32)


@njit(nogil=True, cache=True)
def _round(a, dropped, least, largest):  # type: ignore[no-untyped-def]
    """Magnitude bits of a format with `dropped` bits less in its mantissa, and the value, with a's sign."""
    magnitude = np.int32(_bits(a) & _MAGNITUDE)
    magnitude = magnitude if magnitude < largest else largest
    exponent = np.int32(magnitude & _EXPONENT)
    exponent = exponent if exponent > least else least
    # A float32 of this size has no place for the bits to be dropped: adding it rounds.
    shift = np.int32(exponent + np.int32(dropped << np.int32(23)))
    shifted = _float(magnitude) + _float(shift)
    short = np.int32(np.int32(_bits(shifted) - shift) + np.int32(np.int32(exponent - least) >> dropped))
    return short, _float(_bits(shifted - _float(shift)) | np.int32(_bits(a) & _SIGN))


@njit(nogil=True, cache=True)
def round_to_fp16(a):  # type: ignore[no-untyped-def]
    """The float16 bits of a finite float32, and the float32 that they stand for."""
    short, value = _round(a, np.int32(13), _LEAST16, _LARGEST16)
    return np.int32(short | np.int32((_bits(a) >> np.int32(16)) & _SIGN16)), value


@njit(nogil=True, cache=True)
def from_fp16(short):  # type: ignore[no-untyped-def]
    """The float32 of float16 bits that are neither infinite nor NaN."""
    magnitude = np.int32(short & np.int32(0x7FFF))
    normal = _float((magnitude << np.int32(13)) + np.int32(112 << 23))
    value = normal if magnitude >= np.int32(1 << 10) else np.float32(magnitude) * _SUBNORMAL16
    return _float(_bits(value) | ((np.int32(short) & _SIGN16) << np.int32(16)))


@njit(nogil=True, cache=True)
def round_to_bf16(a):  # type: ignore[no-untyped-def]
    """The bfloat16 bits of a finite float32, and the float32 that they stand for."""
    a = a if a < _LARGEST_BF16 else _LARGEST_BF16
    a = a if a > -_LARGEST_BF16 else -_LARGEST_BF16
    odd = np.int32((_bits(a) >> np.int32(16)) & np.int32(1))
    rounded = np.int32(np.int32(_bits(a) + odd) + np.int32(0x7FFF))
    return np.int32(rounded >> np.int32(16)), _float(rounded & _HIGH16)


@njit(nogil=True, cache=True)
def from_bf16(short):  # type: ignore[no-untyped-def]
    """The float32 of bfloat16 bits."""
    return _float(np.int32(short) << np.int32(16))


@njit(nogil=True, cache=True)
def round_to_fp8(a):  # type: ignore[no-untyped-def]
    """The float8 e4m3fn bits of a finite float32, and the float32 that they stand for."""
    short, value = _round(a, np.int32(20), _LEAST8, _LARGEST8)
    return np.int32(short | np.int32((_bits(a) >> np.int32(24)) & _SIGN8)), value


@njit(nogil=True, cache=True)
def from_fp8(short):  # type: ignore[no-untyped-def]
    """The float32 of float8 e4m3fn bits that are not NaN."""
    magnitude = np.int32(short & np.int32(0x7F))
    normal = _float((magnitude << np.int32(20)) + np.int32(120 << 23))
    value = normal if magnitude >= np.int32(1 << 3) else np.float32(magnitude) * _SUBNORMAL8
    return _float(_bits(value) | ((np.int32(short) & _SIGN8) << np.int32(24)))


@njit(nogil=True, cache=True)
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2^exponent as a float32, exponent in -126 to 127."""
    return _float(np.int32((np.int32(exponent) + np.int32(127)) << np.int32(23)))
