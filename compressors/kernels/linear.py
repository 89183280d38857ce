"""Uniform b-bit quantization in blocks: Oland and Raj, section 3.1 and Algorithms 1 and 2.

The range of a block is split evenly into 2^b bins, and an element becomes the centre of its bin. For a
block with smallest element low and largest high, all in float32, every operation rounded by itself:

    step   = high 2^-b - low 2^-b; 0 where that is less than 2^-126
    symbol = min(int((a / 2 - low / 2) (2 / step)), 2^b - 1); 0 where step is 0
    value  = h + h, where h = low / 2 + (step / 2) (symbol + 0.5)

The halves keep every number finite whatever the range is; short of subnormal numbers they change
nothing. A low or high that is zero is +0.0. Bins are counted from low upwards, as Algorithm 2 decodes
them (the paper's Quantize counts them from high downwards).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .blockwise import (
    HIGHEST_KEY,
    LINE,
    LOWEST_KEY,
    Piece,
    QuantizedPass,
    accumulate,
    block_count,
    from_order_key,
    order_key,
    over,
    part,
    pieces,
    reported,
    squares_of,
)

_SMALLEST_STEP = np.float32(2.0**-126)
_HALF, _TWO, _ZERO = np.float32(0.5), np.float32(2), np.float32(0)


@dataclass(frozen=True)
class Extremes:
    """The range of every block."""

    lows: NDArray[np.float32]
    """float32 [blocks]"""
    highs: NDArray[np.float32]
    """float32 [blocks]"""
    nonfinite: bool
    """Whether a NaN or Inf was met; then the ranges mean nothing."""


@njit(nogil=True, cache=True)
def _line_extremes(residual, gradient):  # type: ignore[no-untyped-def]
    # Order keys and not floats, and no min() or max(): so that the loop vectorizes.
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for j in range(gradient.size):
        key = order_key(gradient[j] if residual is None else residual[j] + gradient[j])
        low = key if key < low else low
        high = key if key > high else high
    return low, high


@njit(nogil=True, cache=True)
def _extreme_keys(residual, gradient, block, low_keys, high_keys):  # type: ignore[no-untyped-def]
    for b in range(low_keys.size):
        first, last = b * block, min((b + 1) * block, gradient.size)
        r = None if residual is None else residual[first:last]
        low_keys[b], high_keys[b] = _line_extremes(r, gradient[first:last])


@njit(nogil=True, cache=True)
def _from_key(key):  # type: ignore[no-untyped-def]
    return from_order_key(key if key != np.int32(-1) else np.int32(0))  # -1 is the key of -0.0


@njit(nogil=True, cache=True)
def _from_keys(keys, values):  # type: ignore[no-untyped-def]
    for b in range(keys.size):
        values[b] = _from_key(keys[b])


@njit(nogil=True, cache=True)
def _step(low, high, scale):  # type: ignore[no-untyped-def]
    step = high * scale - low * scale
    return step if step >= _SMALLEST_STEP else _ZERO


@njit(nogil=True, cache=True)
def _fill_steps(lows, highs, scale, steps):  # type: ignore[no-untyped-def]
    for b in range(lows.size):
        steps[b] = _step(lows[b], highs[b], scale)


@njit(nogil=True, cache=True)
def _value(half_low, half_step, symbol):  # type: ignore[no-untyped-def]
    half = half_low + half_step * (np.float32(symbol) + _HALF)
    return half + half


@njit(nogil=True, cache=True)
def _quantize_line(residual, gradient, low, step, top, symbols):  # type: ignore[no-untyped-def]
    half_low, half_step = low * _HALF, step * _HALF
    inverse = _TWO / step if step > _ZERO else _ZERO
    squares = _ZERO
    for j in range(gradient.size):
        a = gradient[j] if residual is None else residual[j] + gradient[j]
        symbol = np.int32((a * _HALF - half_low) * inverse)
        symbol = symbol if symbol < top else top
        symbols[j] = symbol
        if residual is not None:
            kept = a - _value(half_low, half_step, symbol)
            residual[j] = kept
            squares = accumulate(squares, kept * kept)
    return squares


@njit(nogil=True, cache=True)
def _quantize(residual, gradient, block, lows, steps, top, symbols):  # type: ignore[no-untyped-def]
    total = 0.0
    for b in range(lows.size):
        end = min((b + 1) * block, gradient.size)
        for first in range(b * block, end, LINE):
            last = min(first + LINE, end)
            g, s = gradient[first:last], symbols[first:last]
            if residual is None:
                _quantize_line(None, g, lows[b], steps[b], top, s)
            else:
                r = residual[first:last]
                total += squares_of(_quantize_line(r, g, lows[b], steps[b], top, s), r)
    return total


@njit(nogil=True, cache=True)
def _measure_and_quantize(gradient, block, lows, steps, scale, top, symbols):  # type: ignore[no-untyped-def]
    """Both passes over whole blocks without a residual, block by block; whether all is finite."""
    for b in range(lows.size):
        first, last = b * block, min((b + 1) * block, gradient.size)
        low_key, high_key = _line_extremes(None, gradient[first:last])
        if low_key < LOWEST_KEY or high_key > HIGHEST_KEY:
            return False
        low = _from_key(low_key)
        lows[b], steps[b] = low, _step(low, _from_key(high_key), scale)
        _quantize_line(None, gradient[first:last], low, steps[b], top, symbols[first:last])
    return True


@njit(nogil=True, cache=True)
def _dequantize(symbols, block, lows, steps, out, add):  # type: ignore[no-untyped-def]
    for b in range(lows.size):
        half_low, half_step = lows[b] * _HALF, steps[b] * _HALF
        first, last = b * block, min((b + 1) * block, symbols.size)
        s, o = symbols[first:last], out[first:last]
        if add:
            for j in range(s.size):
                o[j] += _value(half_low, half_step, s[j])
        else:
            for j in range(s.size):
                o[j] = _value(half_low, half_step, s[j])


def extremes(
    residual: NDArray[np.float32] | None, gradient: NDArray[np.float32], block: int, threads: int = 1
) -> Extremes:
    """The smallest and the largest residual + gradient of every block; changes nothing.

    Args:
        residual: contiguous float32 [n], or None for zeros.
        gradient: contiguous float32 [n].
        block: elements of a block; 0 for one block.
        threads: how many to use.
    """
    parts = pieces(gradient.size, block)
    blocks = block_count(gradient.size, block)
    low_keys = np.full(blocks, np.iinfo(np.int32).max, np.int32)
    high_keys = np.full(blocks, np.iinfo(np.int32).min, np.int32)

    def find(piece: Piece) -> NDArray[np.int32]:
        keys = np.empty((2, piece.blocks.stop - piece.blocks.start), np.int32)
        at = piece.elements
        _extreme_keys(part(residual, at), gradient[at], piece.block, keys[0], keys[1])
        return keys

    for piece, (low, high) in zip(parts, over(parts, find, threads), strict=True):
        np.minimum(low_keys[piece.blocks], low, out=low_keys[piece.blocks])
        np.maximum(high_keys[piece.blocks], high, out=high_keys[piece.blocks])
    finite = blocks == 0 or (low_keys.min() >= LOWEST_KEY and high_keys.max() <= HIGHEST_KEY)
    lows, highs = np.empty(blocks, np.float32), np.empty(blocks, np.float32)
    _from_keys(low_keys, lows)
    _from_keys(high_keys, highs)
    return Extremes(lows, highs, not finite)


def linear_pass(
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    bits: int,
    block: int,
    symbols: NDArray[Any],
    lows: NDArray[np.float32],
    steps: NDArray[np.float32],
    threads: int = 1,
    ranges: Extremes | None = None,
) -> QuantizedPass:
    """Quantizes residual + gradient and keeps in the residual what the symbols leave out.

    Args:
        residual: contiguous float32 [n], changed in place; None for zeros that nobody keeps.
        gradient: contiguous float32 [n].
        bits: of a symbol, 1 to 16.
        block: elements of a block, the last one may be shorter; 0 for one block.
        symbols: uint8 [n] for up to 8 bits, uint16 [n] above; receives the symbols.
        lows: float32 [blocks]; receives the smallest element of each block.
        steps: float32 [blocks]; receives the width of a bin.
        threads: how many to use; the result does not depend on it.
        ranges: what `extremes` says of the same arrays, if that is known already.

    Returns:
        What was kept. If any sum is not finite, the residual is as it was.
    """
    scale, top = np.float32(2.0**-bits), np.int32((1 << bits) - 1)
    parts = pieces(gradient.size, block)
    # With a residual, all of it must be known to be finite before any of it changes.
    at_once = residual is None and ranges is None and all(piece.whole for piece in parts)
    if not at_once:
        ranges = ranges or extremes(residual, gradient, block, threads)
        if ranges.nonfinite:
            return QuantizedPass(0.0, True)
        lows[:] = ranges.lows
        _fill_steps(ranges.lows, ranges.highs, scale, steps)

    def quantize(piece: Piece) -> float:
        at, b = piece.elements, piece.blocks
        g, s = gradient[at], symbols[at]
        if at_once:
            finite = _measure_and_quantize(g, piece.block, lows[b], steps[b], scale, top, s)
            return 0.0 if finite else np.inf
        squares: float = _quantize(part(residual, at), g, piece.block, lows[b], steps[b], top, s)
        return squares

    return reported(over(parts, quantize, threads))


def linear_values(
    symbols: NDArray[Any],
    block: int,
    lows: NDArray[np.float32],
    steps: NDArray[np.float32],
    out: NDArray[np.float32],
    add: bool,
    threads: int = 1,
) -> None:
    """Writes, or adds, the values that symbols stand for.

    Args:
        symbols: uint8 or uint16 [n].
        block: as it was for `linear_pass`.
        lows: float32 [blocks].
        steps: float32 [blocks].
        out: contiguous float32 [n].
        add: add to `out` instead of overwriting it.
        threads: how many to use.
    """

    def write(piece: Piece) -> None:
        at, b = piece.elements, piece.blocks
        _dequantize(symbols[at], piece.block, lows[b], steps[b], out[at], add)

    over(pieces(symbols.size, block), write, threads)


def linear_tables_valid(bits: int, lows: NDArray[np.float32], steps: NDArray[np.float32]) -> bool:
    """Whether tables from the wire are such as `linear_pass` writes, and all their values finite."""
    with np.errstate(all="ignore"):
        highest = lows * _HALF + (steps * _HALF) * np.float32((1 << bits) - 0.5)
        step_fits = (steps.view(np.uint32) == 0) | (steps >= _SMALLEST_STEP)
        low_fits = np.isfinite(lows) & (lows.view(np.uint32) != 0x80000000)
        return bool(np.all(step_fits & low_fits & np.isfinite(highest + highest)))
