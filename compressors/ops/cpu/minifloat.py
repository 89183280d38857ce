"""Short floating point formats: float16, bfloat16, and float8 e4m3fn with an exponent per block.

Rounding is to nearest, ties to even, subnormal numbers included. What is larger than the largest finite
number of a format becomes that number; with a residual the rest is sent later.

A block of float8 numbers is scaled by 2^-e. With m its largest magnitude, e is the smallest integer for
which m 2^-e <= 448, so that it lies in (224, 448]; but -126 <= e <= 119, which keeps every value finite,
and e = 0 where m = 0. Every value is exact in float32.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..results import HalfFormat, QuantizedPass, Quantizing
from .block_rows import (
    RowReports,
    alone,
    fits_rows,
    keeps,
    opened,
    over_rows,
    residual_of,
    write_report,
)
from .blockwise import (
    LINE,
    NO_KEYS,
    Piece,
    accumulate,
    keys_finite,
    order_key,
    over,
    part,
    pieces,
    squares_of,
    take_up,
    take_up_all,
    take_up_rest,
    taken_up,
)
from .float_formats import (
    from_bf16,
    from_fp8,
    from_fp16,
    power_of_two,
    round_to_bf16,
    round_to_fp8,
    round_to_fp16,
)
from .rows import Rows

FP8_EXPONENTS = (-126, 119)
"""The smallest and the largest exponent of a block."""

_INFINITY = np.int32(0x7F800000)


@njit(nogil=True, cache=True)
def _sum(residual, gradient, j):  # type: ignore[no-untyped-def]
    """An element's residual + gradient, or residual where the sum is not finite; the sum's magnitude bits."""
    before = np.float32(0) if residual is None else residual[j]
    a = gradient[j] if residual is None else before + gradient[j]
    magnitude = np.int32(np.float32(a).view(np.int32) & np.int32(0x7FFFFFFF))
    return a if magnitude < _INFINITY else before, magnitude


@njit(nogil=True, cache=True)
def _fp16_line(residual, gradient, symbols):  # type: ignore[no-untyped-def]
    squares, largest = np.float32(0), np.int32(0)
    for j in range(gradient.size):
        a, magnitude = _sum(residual, gradient, j)
        largest = magnitude if magnitude > largest else largest  # max() would not vectorize
        symbols[j], value = round_to_fp16(a)
        if residual is not None:
            kept = a - value
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares, largest


@njit(nogil=True, cache=True)
def _bf16_line(residual, gradient, symbols):  # type: ignore[no-untyped-def]
    squares, largest = np.float32(0), np.int32(0)
    for j in range(gradient.size):
        a, magnitude = _sum(residual, gradient, j)
        largest = magnitude if magnitude > largest else largest
        symbols[j], value = round_to_bf16(a)
        if residual is not None:
            kept = a - value
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares, largest


@njit(nogil=True, cache=True)
def _quantize_half(residual, gradient, brain, symbols):  # type: ignore[no-untyped-def]
    """Returns the sum of squares kept, and whether all sums are finite."""
    total, finite = 0.0, True
    for first in range(0, gradient.size, LINE):
        at = slice(first, first + LINE)
        r, g, s = part(residual, at), gradient[at], symbols[at]
        squares, largest = _bf16_line(r, g, s) if brain else _fp16_line(r, g, s)
        finite = finite and largest < _INFINITY
        if residual is not None:
            total += squares_of(squares, r)
    return total, finite


@njit(nogil=True, cache=True)
def _quantize_half_rows(rows, brain, all_symbols, reports):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        gradient, symbols, _, _, blocks = opened(rows[i], all_symbols)
        if keeps(rows[i]):
            squares, finite = _quantize_half(residual_of(rows[i]), gradient, brain, symbols)
        else:
            squares, finite = _quantize_half(None, gradient, brain, symbols)
        write_report(reports[i], squares, blocks, finite)


@njit(nogil=True, cache=True)
def _fp8_line(residual, gradient, exponent, symbols, next_residual, next_gradient):  # type: ignore[no-untyped-def]
    """Rounds as many elements as there are symbols, and takes up as many others; see `linear`."""
    values = gradient if residual is None else residual
    down, up = power_of_two(-exponent), power_of_two(exponent)
    squares = np.float32(0)
    low_key, high_key = NO_KEYS
    for j in range(symbols.size):
        a = values[j]
        symbols[j], value = round_to_fp8(a * down)
        if residual is not None:
            kept = a - value * up
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
        if next_gradient is not None:
            if next_residual is None:
                key = order_key(next_gradient[j])
            else:
                next_residual[j], key = taken_up(next_residual[j], next_gradient[j])
            low_key = key if key < low_key else low_key
            high_key = key if key > high_key else high_key
    return squares, low_key, high_key


@njit(nogil=True, cache=True)
def _fp8_block(residual, gradient, b, block, exponent, symbols):  # type: ignore[no-untyped-def]
    """`_fp8_line` for block b and the one behind it, which may be shorter."""
    total = 0.0
    low_key, high_key = NO_KEYS
    for first in range(b * block, min((b + 1) * block, gradient.size), LINE):
        last = min(first + LINE, (b + 1) * block)
        at, behind = slice(first, last), slice(first + block, last + block)
        r, g, s = part(residual, at), gradient[at], symbols[at]
        next_r, next_g = part(residual, behind), gradient[behind]
        if next_g.size == s.size:
            squares, lowest, highest = _fp8_line(r, g, exponent, s, next_r, next_g)
        else:
            squares, _, _ = _fp8_line(r, g, exponent, s, None, None)
            lowest, highest = take_up(next_r, next_g)
        low_key, high_key = min(low_key, lowest), max(high_key, highest)
        if residual is not None:
            total += squares_of(squares, r)
    return total, low_key, high_key


@njit(nogil=True, cache=True)
def _fp8_exponent(low_key, high_key):  # type: ignore[no-untyped-def]
    # The key of a negative number is the complement of its magnitude's bits.
    largest = max(np.int64(high_key), ~np.int64(low_key))
    if largest == 0:
        return 0
    # 448 is 1.75 * 2^8: a larger mantissa needs one more. Subnormal numbers end up below the range.
    exponent = (largest >> 23) - 127 - 8 + ((largest & 0x7FFFFF) > 0x600000)
    return min(max(exponent, FP8_EXPONENTS[0]), FP8_EXPONENTS[1])


@njit(nogil=True, cache=True)
def _fill_exponents(low_keys, high_keys, exponents):  # type: ignore[no-untyped-def]
    for b in range(exponents.size):
        exponents[b] = _fp8_exponent(low_keys[b], high_keys[b])


@njit(nogil=True, cache=True)
def _quantize_fp8_at_once(residual, gradient, block, exponents, symbols):  # type: ignore[no-untyped-def]
    """Takes up all blocks of a piece, and quantizes them up to the first that is not finite; see `linear`."""
    total = 0.0
    low_key, high_key = take_up(part(residual, slice(0, block)), gradient[:block])
    for b in range(exponents.size):
        if not keys_finite(low_key, high_key):
            take_up_rest(residual, gradient, (b + 1) * block)
            return total, b
        exponents[b] = _fp8_exponent(low_key, high_key)
        squares, low_key, high_key = _fp8_block(residual, gradient, b, block, exponents[b], symbols)
        total += squares
    return total, exponents.size


@njit(nogil=True, cache=True)
def _quantize_fp8_rows(rows, all_exponents, all_symbols, reports):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        gradient, symbols, block, at, blocks = opened(rows[i], all_symbols)
        if keeps(rows[i]):
            squares, done = _quantize_fp8_at_once(
                residual_of(rows[i]), gradient, block, all_exponents[at], symbols
            )
        else:
            squares, done = _quantize_fp8_at_once(None, gradient, block, all_exponents[at], symbols)
        write_report(reports[i], squares, done, done == blocks)


@njit(nogil=True, cache=True)
def _quantize_fp8(residual, gradient, block, exponents, symbols):  # type: ignore[no-untyped-def]
    """Quantizes blocks of known exponent; with a residual, what stands there."""
    total = 0.0
    for b in range(exponents.size):
        end = min((b + 1) * block, gradient.size)
        for first in range(b * block, end, LINE):
            at = slice(first, min(first + LINE, end))
            r, g, s = part(residual, at), gradient[at], symbols[at]
            squares, _, _ = _fp8_line(r, g, exponents[b], s, None, None)
            if residual is not None:
                total += squares_of(squares, r)
    return total


@njit(nogil=True, cache=True)
def from_halves(symbols, brain, out, add):  # type: ignore[no-untyped-def]
    """Writes to out, float32 [n], or adds, the finite numbers that symbols [n] stand for."""
    if brain and add:
        for j in range(symbols.size):
            out[j] += from_bf16(symbols[j])
    elif brain:
        for j in range(symbols.size):
            out[j] = from_bf16(symbols[j])
    elif add:
        for j in range(symbols.size):
            out[j] += from_fp16(symbols[j])
    else:
        for j in range(symbols.size):
            out[j] = from_fp16(symbols[j])


@njit(nogil=True, cache=True)
def from_fp8s(symbols, block, exponents, out, add):  # type: ignore[no-untyped-def]
    """Writes to out, float32 [n], or adds, what symbols [n], none of them NaN, stand for."""
    for b in range(exponents.size):
        first, last = b * block, min((b + 1) * block, symbols.size)
        s, o, up = symbols[first:last], out[first:last], power_of_two(exponents[b])
        if add:
            for j in range(s.size):
                o[j] += from_fp8(s[j]) * up
        else:
            for j in range(s.size):
                o[j] = from_fp8(s[j]) * up


def half_pass(
    kind: HalfFormat,
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    symbols: NDArray[np.uint16],
    threads: int = 1,
) -> QuantizedPass:
    """Rounds residual + gradient to a 16-bit format and keeps what that leaves out.

    Args:
        kind: `fp16` or `bf16`.
        residual: contiguous float32 [n], changed in place; None for zeros that nobody keeps.
        gradient: contiguous float32 [n].
        symbols: uint16 [n]; receives the bits.
        threads: how many to use; the result does not depend on it.

    Returns:
        What was kept; see `QuantizedPass` for sums that are not finite.
    """
    return half_rows(kind, alone(residual, gradient, symbols, 16, 0), threads)[0]


def half_rows(kind: HalfFormat, work: Quantizing, threads: int = 1) -> list[QuantizedPass]:
    """`half_pass` over some parameters, in one call."""
    brain = kind == "bf16"

    def quantize(rows: Rows, symbols: NDArray[Any], reports: RowReports) -> None:
        _quantize_half_rows(rows, brain, symbols, reports)

    def put_back(symbols: NDArray[Any], block: int, at: slice, residual: NDArray[np.float32]) -> None:
        from_halves(symbols, brain, residual, True)  # where a sum was not finite, of the residual alone

    return over_rows(work, quantize, put_back, threads)


def fp8_pass(
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    block: int,
    symbols: NDArray[np.uint8],
    exponents: NDArray[np.int8],
    threads: int = 1,
) -> QuantizedPass:
    """Rounds residual + gradient to scaled float8 e4m3fn and keeps what that leaves out.

    Args:
        residual: contiguous float32 [n], changed in place; None for zeros that nobody keeps.
        gradient: contiguous float32 [n].
        block: elements of a block, the last one may be shorter; 0 for one block.
        symbols: uint8 [n]; receives the bits of a 2^-e.
        exponents: int8 [blocks]; receives e.
        threads: how many to use; the result does not depend on it.

    Returns:
        What was kept; see `QuantizedPass` for sums that are not finite.
    """
    if fits_rows(gradient.size, block):
        return fp8_rows(alone(residual, gradient, symbols, 8, block), exponents, threads)[0]

    def quantize(piece: Piece) -> float:
        at, e = piece.elements, exponents[piece.blocks]
        squares: float = _quantize_fp8(part(residual, at), gradient[at], piece.block, e, symbols[at])
        return squares

    low_keys, high_keys = take_up_all(residual, gradient, block, threads)
    if not keys_finite(low_keys.min(), high_keys.max()):
        return QuantizedPass(0.0, True)
    _fill_exponents(low_keys, high_keys, exponents)
    return QuantizedPass(sum(over(pieces(gradient.size, block), quantize, threads), 0.0), False)


def fp8_rows(work: Quantizing, exponents: NDArray[np.int8], threads: int = 1) -> list[QuantizedPass]:
    """`fp8_pass` over parameters whose blocks fit rows, in one call; exponents stand where `offsets` says."""

    def quantize(rows: Rows, symbols: NDArray[Any], reports: RowReports) -> None:
        _quantize_fp8_rows(rows, exponents, symbols, reports)

    def put_back(symbols: NDArray[Any], block: int, at: slice, residual: NDArray[np.float32]) -> None:
        from_fp8s(symbols, block, exponents[at], residual, True)

    return over_rows(work, quantize, put_back, threads)
