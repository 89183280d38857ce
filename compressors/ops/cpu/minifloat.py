"""Short floating point formats: float16, bfloat16, and float8 e4m3fn with an exponent per block.

Rounding is to nearest, ties to even, subnormal numbers included. What is larger than the largest finite
number of a format becomes that number; with a residual the rest is sent later.

A block of float8 numbers is scaled by 2^-e. With m its largest magnitude, e is the smallest integer for
which m 2^-e <= 448, so that it lies in (224, 448]; but -126 <= e <= 119, which keeps every value finite,
and e = 0 where m = 0. Every value is exact in float32.
"""

from typing import cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..interface import FP8_EXPONENTS, QuantizedPass, Quantizing
from .blockwise import (
    LINE,
    PutBack,
    Report,
    Share,
    accumulate,
    fits_pieces,
    keys_finite,
    over_pieces,
    over_taken_up,
    squares_of,
    take_up,
    take_up_all,
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

_INFINITY = np.int32(0x7F800000)


@njit(nogil=True, cache=True)
def _half_line(residual, gradient, keeps, brain, symbols):  # type: ignore[no-untyped-def]
    """Rounds sums, or residuals where these are not finite; returns squares kept, the largest magnitude."""
    squares, largest = np.float32(0), np.int32(0)
    for j in range(gradient.size):
        before = residual[j] if keeps else np.float32(0)
        a = before + gradient[j] if keeps else gradient[j]
        magnitude = np.int32(np.float32(a).view(np.int32) & np.int32(0x7FFFFFFF))
        largest = magnitude if magnitude > largest else largest  # max() would not vectorize
        a = a if magnitude < _INFINITY else before
        if len(brain) == 2:
            symbols[j], value = round_to_bf16(a)
        else:
            symbols[j], value = round_to_fp16(a)
        if keeps:
            kept = a - value
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares, largest


@njit(nogil=True, cache=True)
def _round_halves(brain, values, gradient, keeps, symbols):  # type: ignore[no-untyped-def]
    """Takes up and rounds a piece; brain is a tuple of two for bfloat16, of one for float16."""
    total, finite = 0.0, True
    for first in range(0, gradient.size, LINE):
        r, s = values[first : first + LINE], symbols[first : first + LINE]
        squares, largest = _half_line(r, gradient[first : first + LINE], keeps, brain, s)
        finite = finite and largest < _INFINITY
        if keeps:
            total += squares_of(squares, r)
    return total, finite


@njit(nogil=True, cache=True)
def _round_fp8(values, keeps, exponent, symbols):  # type: ignore[no-untyped-def]
    """Rounds values of one block; with `keeps`, what that leaves out stays in their place.

    Returns:
        The sum of squares kept.
    """
    down, up = power_of_two(-exponent), power_of_two(exponent)
    total = 0.0
    for first in range(0, values.size, LINE):
        line, own = values[first : first + LINE], symbols[first : first + LINE]
        squares = np.float32(0)
        for j in range(own.size):
            a = line[j]
            own[j], value = round_to_fp8(a * down)
            if keeps:
                kept = a - value * up
                line[j] = kept
                squares = accumulate(squares, kept * kept)
        if keeps:
            total += squares_of(squares, line)
    return total


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
def _take_up_and_round_fp8(values, gradient, keeps, symbols, block, exponents):  # type: ignore[no-untyped-def]
    """Takes up all blocks of a piece, and rounds them up to the first that is not finite."""
    total, done = 0.0, 0
    for b in range(exponents.size):
        first, last = b * block, (b + 1) * block
        r = values[first:last]
        low_key, high_key = take_up(r, gradient[first:last], keeps)
        if not keys_finite(low_key, high_key):
            take_up(values[last:], gradient[last:], keeps)
            break
        exponents[b] = _fp8_exponent(low_key, high_key)
        total += _round_fp8(r, keeps, exponents[b], symbols[first:last])
        done += 1
    return total, done, done == exponents.size


@njit(nogil=True, cache=True)
def add_fp16(symbols, out):  # type: ignore[no-untyped-def]
    """Adds to out, float32 [n], the finite numbers that symbols [n] stand for."""
    for j in range(symbols.size):
        out[j] += from_fp16(symbols[j])


@njit(nogil=True, cache=True)
def add_bf16(symbols, out):  # type: ignore[no-untyped-def]
    """As `add_fp16`."""
    for j in range(symbols.size):
        out[j] += from_bf16(symbols[j])


@njit(nogil=True, cache=True)
def add_fp8(symbols, block, exponents, out):  # type: ignore[no-untyped-def]
    """As `add_fp16`, of blocks."""
    for b in range(exponents.size):
        first, last = b * block, min((b + 1) * block, symbols.size)
        s, o, up = symbols[first:last], out[first:last], power_of_two(exponents[b])
        for j in range(s.size):
            o[j] += from_fp8(s[j]) * up


def half_rows(form: str, work: Quantizing, put_back: PutBack, threads: int) -> list[QuantizedPass]:
    """`Ops.quantize` to 16-bit floats; `put_back` adds what symbols stand for to a residual."""
    brain = (0, 0) if form == "bf16" else (0,)

    def take_up_and_round(part: Share) -> Report:
        squares, finite = _round_halves(brain, *part[:4])
        return squares, 1, finite

    return over_pieces(work, take_up_and_round, put_back, threads)


def fp8_rows(
    work: Quantizing, exponents: NDArray[np.int8], put_back: PutBack, threads: int
) -> list[QuantizedPass]:
    """`Ops.quantize` to 8-bit floats; `put_back` adds what symbols stand for to a residual."""

    def take_up_and_round(part: Share) -> Report:
        return cast(Report, _take_up_and_round_fp8(*part[:5], exponents[part.tables]))

    def round_block(part: Share) -> float:
        (exponent,) = exponents[part.tables]
        return float(_round_fp8(part.values, part.keeps, exponent, part.symbols))

    if fits_pieces(work):
        return over_pieces(work, take_up_and_round, put_back, threads)
    keys, broken = take_up_all(work, threads)
    exponents[:] = [_fp8_exponent(low, high) for low, high in keys]
    return over_taken_up(work, round_block, broken, threads)
