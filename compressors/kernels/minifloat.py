"""Short floating point formats: float16, bfloat16, and float8 e4m3fn with an exponent per block.

Rounding is to nearest, ties to even, subnormal numbers included. What is larger than the largest finite
number of a format becomes that number; with a residual the rest is sent later.

A block of float8 numbers is scaled by 2^-e. With m its largest magnitude, e is the smallest integer for
which m 2^-e <= 448, so that it lies in (224, 448]; but -126 <= e <= 119, which keeps every value finite,
and e = 0 where m = 0. Every value is exact in float32.
"""

from typing import Any, Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .blockwise import (
    LINE,
    Piece,
    QuantizedPass,
    accumulate,
    all_finite,
    block_count,
    largest_magnitude_bits,
    over,
    part,
    pieces,
    squares_of,
)

HalfFormat = Literal["fp16", "bf16"]

FP8_EXPONENTS = (-126, 119)
"""The smallest and the largest exponent of a block."""

_MAGNITUDE = np.int32(0x7FFFFFFF)
_ONE, _SIGN8, _SIGN16 = np.int32(1), np.int32(0x80), np.int32(0x8000)
_LARGEST16, _LARGEST_BF16, _LARGEST8 = np.int32(0x7BFF), np.int32(0x7F7F), np.int32(0x7E)
# Added to a magnitude below the smallest normal number, these leave its rounded multiple of the smallest
# subnormal number in the lowest bits of the sum.
_MAGIC16, _MAGIC8 = np.float32(0.5), np.float32(2.0**14)
_SUBNORMAL16, _SUBNORMAL8 = np.float32(2.0**-24), np.float32(2.0**-9)


@njit(nogil=True, cache=True)
def _bits(a):  # type: ignore[no-untyped-def]
    return np.float32(a).view(np.int32)


@njit(nogil=True, cache=True)
def _float(bits):  # type: ignore[no-untyped-def]
    return np.int32(bits).view(np.float32)


@njit(nogil=True, cache=True)
def _drop_bits(magnitude, count):  # type: ignore[no-untyped-def]
    """magnitude >> count, rounded to nearest, ties to even."""
    odd = (magnitude >> count) & _ONE
    return np.int32((magnitude + odd + (_ONE << (count - _ONE)) - _ONE) >> count)


@njit(nogil=True, cache=True)
def to_fp16(a):  # type: ignore[no-untyped-def]
    """The float16 bits, as an int32, of a finite float32."""
    magnitude = np.int32(_bits(a) & _MAGNITUDE)
    short = np.int32(_drop_bits(magnitude, np.int32(13)) - np.int32(112 << 10))
    tiny = np.int32(_bits(_float(magnitude) + _MAGIC16) - _bits(_MAGIC16))
    short = short if magnitude >= np.int32(113 << 23) else tiny
    short = short if short < _LARGEST16 else _LARGEST16
    return np.int32(short | ((_bits(a) >> np.int32(16)) & _SIGN16))


@njit(nogil=True, cache=True)
def from_fp16(short):  # type: ignore[no-untyped-def]
    """The float32 of float16 bits that are neither infinite nor NaN."""
    magnitude = np.int32(short & np.int32(0x7FFF))
    normal = _float((magnitude << np.int32(13)) + np.int32(112 << 23))
    value = normal if magnitude >= np.int32(1 << 10) else np.float32(magnitude) * _SUBNORMAL16
    return _float(_bits(value) | ((np.int32(short) & _SIGN16) << np.int32(16)))


@njit(nogil=True, cache=True)
def _to_bf16(a):  # type: ignore[no-untyped-def]
    short = _drop_bits(np.int32(_bits(a) & _MAGNITUDE), np.int32(16))
    short = short if short < _LARGEST_BF16 else _LARGEST_BF16
    return np.int32(short | ((_bits(a) >> np.int32(16)) & _SIGN16))


@njit(nogil=True, cache=True)
def _from_bf16(short):  # type: ignore[no-untyped-def]
    return _float(np.int32(short) << np.int32(16))


@njit(nogil=True, cache=True)
def _to_fp8(a):  # type: ignore[no-untyped-def]
    magnitude = np.int32(_bits(a) & _MAGNITUDE)
    short = np.int32(_drop_bits(magnitude, np.int32(20)) - np.int32(120 << 3))
    tiny = np.int32(_bits(_float(magnitude) + _MAGIC8) - _bits(_MAGIC8))
    short = short if magnitude >= np.int32(121 << 23) else tiny
    short = short if short < _LARGEST8 else _LARGEST8
    return np.int32(short | ((_bits(a) >> np.int32(24)) & _SIGN8))


@njit(nogil=True, cache=True)
def _from_fp8(short):  # type: ignore[no-untyped-def]
    magnitude = np.int32(short & np.int32(0x7F))
    normal = _float((magnitude << np.int32(20)) + np.int32(120 << 23))
    value = normal if magnitude >= np.int32(1 << 3) else np.float32(magnitude) * _SUBNORMAL8
    return _float(_bits(value) | ((np.int32(short) & _SIGN8) << np.int32(24)))


@njit(nogil=True, cache=True)
def power_of_two(exponent):  # type: ignore[no-untyped-def]
    """2^exponent as a float32, exponent in -126 to 127."""
    return _float(np.int32((np.int32(exponent) + np.int32(127)) << np.int32(23)))


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
        short = _to_bf16(a)
        symbols[j] = short
        if residual is not None:
            kept = a - _from_bf16(short)
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares


@njit(nogil=True, cache=True)
def _fp8_line(residual, gradient, exponent, symbols):  # type: ignore[no-untyped-def]
    down, up = power_of_two(-exponent), power_of_two(exponent)
    squares = np.float32(0)
    for j in range(gradient.size):
        a = gradient[j] if residual is None else residual[j] + gradient[j]
        short = _to_fp8(a * down)
        symbols[j] = short
        if residual is not None:
            kept = a - _from_fp8(short) * up
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
def _largest_of_blocks(residual, gradient, block, largest):  # type: ignore[no-untyped-def]
    for b in range(largest.size):
        first, last = b * block, min((b + 1) * block, gradient.size)
        r = None if residual is None else residual[first:last]
        largest[b] = largest_magnitude_bits(r, gradient[first:last])


@njit(nogil=True, cache=True)
def _exponents_of(largest, exponents):  # type: ignore[no-untyped-def]
    for b in range(largest.size):
        exponents[b] = _fp8_exponent(np.int64(largest[b]))


@njit(nogil=True, cache=True)
def _half_values(symbols, brain, out, add):  # type: ignore[no-untyped-def]
    if brain and add:
        for j in range(symbols.size):
            out[j] += _from_bf16(symbols[j])
    elif brain:
        for j in range(symbols.size):
            out[j] = _from_bf16(symbols[j])
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
                o[j] += _from_fp8(s[j]) * up
        else:
            for j in range(s.size):
                o[j] = _from_fp8(s[j]) * up


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
        What was kept. If any sum is not finite, the residual is as it was.
    """
    parts = pieces(gradient.size, 0)
    if not all_finite(parts, residual, gradient, threads):
        return QuantizedPass(0.0, True)

    def quantize(piece: Piece) -> float:
        at = piece.elements
        squares: float = _quantize_half(part(residual, at), gradient[at], kind == "bf16", symbols[at])
        return squares

    return QuantizedPass(sum(over(parts, quantize, threads)), False)


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
    largest = np.zeros(block_count(gradient.size, block), np.int32)

    def find(piece: Piece) -> NDArray[np.int32]:
        found = np.empty(piece.blocks.stop - piece.blocks.start, np.int32)
        at = piece.elements
        _largest_of_blocks(part(residual, at), gradient[at], piece.block, found)
        return found

    for piece, found in zip(parts, over(parts, find, threads), strict=True):
        np.maximum(largest[piece.blocks], found, out=largest[piece.blocks])
    if largest.max(initial=0) >= 0x7F800000:
        return QuantizedPass(0.0, True)
    _exponents_of(largest, exponents)

    def quantize(piece: Piece) -> float:
        at, b = piece.elements, piece.blocks
        squares: float = _quantize_fp8(
            part(residual, at), gradient[at], piece.block, symbols[at], exponents[b]
        )
        return squares

    return QuantizedPass(sum(over(parts, quantize, threads)), False)


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
        symbols: uint8 [n], none of them NaN (`minifloats_valid`).
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
