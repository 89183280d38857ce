"""Short floating point formats: float16, bfloat16, and float8 e4m3fn with an exponent per block.

Rounding is to nearest, ties to even, subnormal numbers included. What is larger than the largest finite
number of a format becomes that number; with a residual the rest is sent later.

A block of float8 numbers is scaled by 2^-e. With m its largest magnitude, e is the smallest integer for
which m 2^-e <= 448, so that it lies in (224, 448]; but -126 <= e <= 119, which keeps every value finite,
and e = 0 where m = 0. Every value is exact in float32.
"""

from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .blockwise import (
    INFINITY,
    LINE,
    Piece,
    QuantizedPass,
    accumulate,
    all_finite,
    largest_magnitude_bits,
    over,
    part,
    pieces,
    reported,
    squares_of,
)
from .float_formats import from_bf16, from_fp8, from_fp16, power_of_two, to_bf16, to_fp8, to_fp16

HalfFormat = Literal["fp16", "bf16"]

FP8_EXPONENTS = (-126, 119)
"""The smallest and the largest exponent of a block."""


@njit(nogil=True, cache=True)
def _fp16_line(residual, gradient, symbols):  # type: ignore[no-untyped-def]
    squares = np.float32(0)
    for j in range(gradient.size):
        a = gradient[j] if residual is None else residual[j] + gradient[j]
        short = to_fp16(a)
        symbols[j] = short
        if residual is not None:
            kept = a - from_fp16(short)
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares


@njit(nogil=True, cache=True)
def _bf16_line(residual, gradient, symbols):  # type: ignore[no-untyped-def]
    squares = np.float32(0)
    for j in range(gradient.size):
        a = gradient[j] if residual is None else residual[j] + gradient[j]
        short = to_bf16(a)
        symbols[j] = short
        if residual is not None:
            kept = a - from_bf16(short)
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares


@njit(nogil=True, cache=True)
def _fp8_line(residual, gradient, exponent, symbols):  # type: ignore[no-untyped-def]
    down, up = power_of_two(-exponent), power_of_two(exponent)
    squares = np.float32(0)
    for j in range(gradient.size):
        a = gradient[j] if residual is None else residual[j] + gradient[j]
        short = to_fp8(a * down)
        symbols[j] = short
        if residual is not None:
            kept = a - from_fp8(short) * up
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares


@njit(nogil=True, cache=True)
def _quantize_half(residual, gradient, brain, symbols):  # type: ignore[no-untyped-def]
    total = 0.0
    for first in range(0, gradient.size, LINE):
        g, s = gradient[first : first + LINE], symbols[first : first + LINE]
        r = None if residual is None else residual[first : first + LINE]
        squares = _bf16_line(r, g, s) if brain else _fp16_line(r, g, s)
        if r is not None:
            total += squares_of(squares, r)
    return total


@njit(nogil=True, cache=True)
def _fp8_exponent(largest_bits):  # type: ignore[no-untyped-def]
    if largest_bits == 0:
        return 0
    # 448 is 1.75 * 2^8: a larger mantissa needs one more. Subnormal numbers end up below the range.
    exponent = (largest_bits >> 23) - 127 - 8 + ((largest_bits & 0x7FFFFF) > 0x600000)
    return min(max(exponent, FP8_EXPONENTS[0]), FP8_EXPONENTS[1])


@njit(nogil=True, cache=True)
def _measure(residual, gradient, block, largest):  # type: ignore[no-untyped-def]
    for b in range(largest.size):
        first, last = b * block, min((b + 1) * block, gradient.size)
        r = None if residual is None else residual[first:last]
        largest[b] = largest_magnitude_bits(r, gradient[first:last])


@njit(nogil=True, cache=True)
def _fill_exponents(largest, exponents):  # type: ignore[no-untyped-def]
    for b in range(largest.size):
        exponents[b] = _fp8_exponent(np.int64(largest[b]))


@njit(nogil=True, cache=True)
def _quantize_fp8(residual, gradient, block, symbols, exponents):  # type: ignore[no-untyped-def]
    total = 0.0
    for b in range(exponents.size):
        end = min((b + 1) * block, gradient.size)
        for first in range(b * block, end, LINE):
            last = min(first + LINE, end)
            r = None if residual is None else residual[first:last]
            squares = _fp8_line(r, gradient[first:last], exponents[b], symbols[first:last])
            if r is not None:
                total += squares_of(squares, r)
    return total


@njit(nogil=True, cache=True)
def _half_values(symbols, brain, out, add):  # type: ignore[no-untyped-def]
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
def _fp8_values(symbols, block, exponents, out, add):  # type: ignore[no-untyped-def]
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
    residual_finite: bool = False,
) -> QuantizedPass:
    """Rounds residual + gradient to a 16-bit format and keeps what that leaves out.

    Args:
        kind: `fp16` or `bf16`.
        residual: contiguous float32 [n], changed in place; None for zeros that nobody keeps.
        gradient: contiguous float32 [n].
        symbols: uint16 [n]; receives the bits.
        threads: how many to use; the result does not depend on it.
        residual_finite: the residual is known to be finite, as every pass leaves it; saves reading it
            once more.

    Returns:
        What was kept. If any sum is not finite, the residual is as it was (unless it was said to be
        finite and is not).
    """
    parts = pieces(gradient.size, 0)
    if not all_finite(parts, residual, gradient, threads, residual_finite):
        return QuantizedPass(0.0, True)

    def quantize(piece: Piece) -> float:
        at = piece.elements
        squares: float = _quantize_half(part(residual, at), gradient[at], kind == "bf16", symbols[at])
        return squares

    return reported(over(parts, quantize, threads))


def half_values(
    kind: HalfFormat, symbols: NDArray[np.uint16], out: NDArray[np.float32], add: bool, threads: int = 1
) -> None:
    """Writes to `out` (float32 [n]), or adds, the finite numbers that 16-bit symbols [n] stand for."""

    def write(piece: Piece) -> None:
        at = piece.elements
        _half_values(symbols[at], kind == "bf16", out[at], add)

    over(pieces(symbols.size, 0), write, threads)


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
        What was kept. If any sum is not finite, the residual is as it was.
    """
    parts = pieces(gradient.size, block)
    largest = np.zeros(exponents.size, np.int32)

    def measure(piece: Piece) -> NDArray[np.int32]:
        at, found = piece.elements, np.empty(piece.blocks.stop - piece.blocks.start, np.int32)
        _measure(part(residual, at), gradient[at], piece.block, found)
        return found

    for piece, found in zip(parts, over(parts, measure, threads), strict=True):
        np.maximum(largest[piece.blocks], found, out=largest[piece.blocks])
    if largest.max(initial=0) >= INFINITY:
        return QuantizedPass(0.0, True)
    _fill_exponents(largest, exponents)

    def quantize(piece: Piece) -> float:
        at, b = piece.elements, piece.blocks
        r, g = part(residual, at), gradient[at]
        squares: float = _quantize_fp8(r, g, piece.block, symbols[at], exponents[b])
        return squares

    return reported(over(parts, quantize, threads))


def fp8_values(
    symbols: NDArray[np.uint8],
    block: int,
    exponents: NDArray[np.int8],
    out: NDArray[np.float32],
    add: bool,
    threads: int = 1,
) -> None:
    """Writes, or adds, the values that float8 symbols stand for.

    Args:
        symbols: uint8 [n], none of them NaN.
        block: as it was for `fp8_pass`.
        exponents: int8 [blocks].
        out: contiguous float32 [n].
        add: add to `out` instead of overwriting it.
        threads: how many to use.
    """

    def write(piece: Piece) -> None:
        at, b = piece.elements, piece.blocks
        _fp8_values(symbols[at], piece.block, exponents[b], out[at], add)

    over(pieces(symbols.size, block), write, threads)
