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

from ..results import QuantizedPass, Quantizing
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
    from_order_key,
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
from .rows import Rows

_SMALLEST_STEP, _LARGEST = np.float32(2.0**-126), np.finfo(np.float32).max
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
def _from_key(key):  # type: ignore[no-untyped-def]
    return from_order_key(key if key != np.int32(-1) else np.int32(0))  # -1 is the key of -0.0


@njit(nogil=True, cache=True)
def from_keys(keys, values):  # type: ignore[no-untyped-def]
    """Writes the float32 of order keys; 0.0 for -0.0."""
    for b in range(keys.size):
        values[b] = _from_key(keys[b])


@njit(nogil=True, cache=True)
def step_between(low, high, scale):  # type: ignore[no-untyped-def]
    """The width of a bin between a block's extremes; scale is 2^-bits."""
    step = high * scale - low * scale
    return step if step >= _SMALLEST_STEP else _ZERO


@njit(nogil=True, cache=True)
def fill_steps(lows, highs, scales, steps):  # type: ignore[no-untyped-def]
    """Writes the width of a bin of each block; scales are 2^-bits of each."""
    for b in range(lows.size):
        steps[b] = step_between(lows[b], highs[b], scales[b])


@njit(nogil=True, cache=True)
def _value(half_low, half_step, symbol):  # type: ignore[no-untyped-def]
    half = half_low + half_step * (np.float32(symbol) + _HALF)
    return half + half


@njit(nogil=True, cache=True)
def _quantize_line(residual, gradient, low, step, top, symbols, next_residual, next_gradient):  # type: ignore[no-untyped-def]
    """Quantizes as many elements as there are symbols, and takes up as many others (if any).

    In one loop, so that memory is read while numbers are worked on.

    Returns:
        Sum of squares kept; lowest and highest key of what was taken up.
    """
    values = gradient if residual is None else residual
    half_low, half_step = low * _HALF, step * _HALF
    inverse = _TWO / step if step > _ZERO else _ZERO
    squares = _ZERO
    low_key, high_key = NO_KEYS
    for j in range(symbols.size):
        a = values[j]
        symbol = np.int32((a * _HALF - half_low) * inverse)
        symbol = symbol if symbol < top else top
        symbols[j] = symbol
        if residual is not None:
            kept = a - _value(half_low, half_step, symbol)
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
def _quantize_block(residual, gradient, b, block, low, step, top, symbols):  # type: ignore[no-untyped-def]
    """`_quantize_line` for block b and the one behind it, which may be shorter."""
    total = 0.0
    low_key, high_key = NO_KEYS
    for first in range(b * block, min((b + 1) * block, gradient.size), LINE):
        last = min(first + LINE, (b + 1) * block)
        at, behind = slice(first, last), slice(first + block, last + block)
        r, g, s = part(residual, at), gradient[at], symbols[at]
        next_r, next_g = part(residual, behind), gradient[behind]
        if next_g.size == s.size:
            squares, lowest, highest = _quantize_line(r, g, low, step, top, s, next_r, next_g)
        else:
            squares, _, _ = _quantize_line(r, g, low, step, top, s, None, None)
            lowest, highest = take_up(next_r, next_g)
        low_key, high_key = min(low_key, lowest), max(high_key, highest)
        if residual is not None:
            total += squares_of(squares, r)
    return total, low_key, high_key


@njit(nogil=True, cache=True)
def _quantize_at_once(residual, gradient, block, lows, steps, scale, top, symbols):  # type: ignore[no-untyped-def]
    """Takes up all blocks of a piece, and quantizes them up to the first that is not finite.

    Returns:
        The sum of squares kept, and how many blocks were quantized.
    """
    total = 0.0
    low_key, high_key = take_up(part(residual, slice(0, block)), gradient[:block])
    for b in range(lows.size):
        if not keys_finite(low_key, high_key):
            take_up_rest(residual, gradient, (b + 1) * block)
            return total, b
        low = _from_key(low_key)
        step = step_between(low, _from_key(high_key), scale)
        lows[b], steps[b] = low, step
        squares, low_key, high_key = _quantize_block(residual, gradient, b, block, low, step, top, symbols)
        total += squares
    return total, lows.size


@njit(nogil=True, cache=True)
def _quantize_rows(rows, all_lows, all_steps, scale, top, all_symbols, reports):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        gradient, symbols, block, at, blocks = opened(rows[i], all_symbols)
        lows, steps = all_lows[at], all_steps[at]
        if keeps(rows[i]):
            residual = residual_of(rows[i])
            squares, done = _quantize_at_once(residual, gradient, block, lows, steps, scale, top, symbols)
        else:
            squares, done = _quantize_at_once(None, gradient, block, lows, steps, scale, top, symbols)
        write_report(reports[i], squares, done, done == blocks)


@njit(nogil=True, cache=True)
def quantize_known(residual, gradient, block, lows, steps, top, symbols):  # type: ignore[no-untyped-def]
    """Quantizes blocks of known range; with a residual, what stands there."""
    total = 0.0
    for b in range(lows.size):
        end = min((b + 1) * block, gradient.size)
        for first in range(b * block, end, LINE):
            at = slice(first, min(first + LINE, end))
            r, g, s = part(residual, at), gradient[at], symbols[at]
            squares, _, _ = _quantize_line(r, g, lows[b], steps[b], top, s, None, None)
            if residual is not None:
                total += squares_of(squares, r)
    return total


@njit(nogil=True, cache=True)
def dequantize(symbols, block, lows, steps, out, add):  # type: ignore[no-untyped-def]
    """Writes to out, float32 [n], or adds, what symbols [n] stand for."""
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
    """Adds a gradient to a residual, and finds the smallest and the largest element of every block.

    Args:
        residual: contiguous float32 [n], or None for zeros that nobody keeps. Gains the gradient, but for
            elements whose sum is not finite.
        gradient: contiguous float32 [n].
        block: elements of a block; 0 for one block.
        threads: how many to use.
    """
    low_keys, high_keys = take_up_all(residual, gradient, block, threads)
    finite = not low_keys.size or keys_finite(low_keys.min(), high_keys.max())
    lows, highs = np.empty(low_keys.size, np.float32), np.empty(low_keys.size, np.float32)
    from_keys(low_keys, lows)
    from_keys(high_keys, highs)
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
    """
    if fits_rows(gradient.size, block):
        return linear_rows(alone(residual, gradient, symbols, bits, block), lows, steps, threads)[0]
    scale, top = np.float32(2.0**-bits), np.int32((1 << bits) - 1)

    def quantize(piece: Piece) -> float:
        at, b = piece.elements, piece.blocks
        r, g, s = part(residual, at), gradient[at], symbols[at]
        squares: float = quantize_known(r, g, piece.block, lows[b], steps[b], top, s)
        return squares

    ranges = extremes(residual, gradient, block, threads)
    if ranges.nonfinite:
        return QuantizedPass(0.0, True)
    lows[:] = ranges.lows
    fill_steps(ranges.lows, ranges.highs, np.full(steps.size, scale), steps)
    return QuantizedPass(sum(over(pieces(gradient.size, block), quantize, threads), 0.0), False)


def linear_rows(
    work: Quantizing, lows: NDArray[np.float32], steps: NDArray[np.float32], threads: int = 1
) -> list[QuantizedPass]:
    """`linear_pass` over parameters whose blocks fit rows, in one call; tables stand where `offsets` says."""
    scale, top = np.float32(2.0**-work.bits), np.int32((1 << work.bits) - 1)

    def quantize(rows: Rows, symbols: NDArray[Any], reports: RowReports) -> None:
        _quantize_rows(rows, lows, steps, scale, top, symbols, reports)

    def put_back(symbols: NDArray[Any], block: int, at: slice, residual: NDArray[np.float32]) -> None:
        dequantize(symbols, block, lows[at], steps[at], residual, True)

    return over_rows(work, quantize, put_back, threads)


def linear_tables_valid(
    bits: NDArray[np.int64], lows: NDArray[np.float32], steps: NDArray[np.float32]
) -> bool:
    """Whether tables from the wire are such as `linear_pass` writes, and all their values finite.

    Args:
        bits: int64 [blocks], of the symbols of each block.
        lows: float32 [blocks].
        steps: float32 [blocks].
    """
    return bool(_tables_valid(lows, steps, ((1 << bits) - 0.5).astype(np.float32)))


@njit(nogil=True, cache=True)
def _tables_valid(lows, steps, highest_bins):  # type: ignore[no-untyped-def]
    """In one loop: most tables are short, and NumPy would need eleven calls."""
    valid = True
    for b in range(lows.size):
        low, step = lows[b], steps[b]
        half = low * _HALF + (step * _HALF) * highest_bins[b]
        step_fits = np.float32(step).view(np.uint32) == np.uint32(0) or step >= _SMALLEST_STEP
        low_fits = abs(low) <= _LARGEST and np.float32(low).view(np.uint32) != np.uint32(0x80000000)
        valid &= step_fits and low_fits and abs(half + half) <= _LARGEST
    return valid
