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

from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from ..interface import QuantizedPass, Quantizing, Ranges
from ..segments import Numbers
from .blockwise import (
    LINE,
    PutBack,
    Report,
    Share,
    accumulate,
    fits_pieces,
    from_order_key,
    keys_finite,
    over_pieces,
    over_taken_up,
    squares_of,
    take_up,
    take_up_all,
)

_SMALLEST_STEP, _LARGEST = np.float32(2.0**-126), np.finfo(np.float32).max
_HALF, _TWO, _ZERO = np.float32(0.5), np.float32(2), np.float32(0)
_NO_SYMBOLS = np.empty(0, np.uint8)


class Extremes(NamedTuple):
    """See `ops.interface.Ranges`."""

    low: np.float32
    high: np.float32
    nonfinite: bool


@njit(nogil=True, cache=True)
def _from_key(key):  # type: ignore[no-untyped-def]
    return from_order_key(key if key != np.int32(-1) else np.int32(0))  # -1 is the key of -0.0


@njit(nogil=True, cache=True)
def _step_between(low, high, scale):  # type: ignore[no-untyped-def]
    """The width of a bin between a block's extremes; scale is 2^-bits."""
    step = high * scale - low * scale
    return step if step >= _SMALLEST_STEP else _ZERO


@njit(nogil=True, cache=True)
def _value(half_low, half_step, symbol):  # type: ignore[no-untyped-def]
    half = half_low + half_step * (np.float32(symbol) + _HALF)
    return half + half


@njit(nogil=True, cache=True)
def _quantize(values, keeps, low, step, top, symbols):  # type: ignore[no-untyped-def]
    """Quantizes values of one block, and with `keeps` what the symbols leave out stays in their place.

    Returns:
        The sum of squares kept.
    """
    half_low, half_step = low * _HALF, step * _HALF
    inverse = _TWO / step if step > _ZERO else _ZERO
    total = 0.0
    for first in range(0, values.size, LINE):
        line, own = values[first : first + LINE], symbols[first : first + LINE]
        squares = _ZERO
        for j in range(own.size):
            a = line[j]
            symbol = np.int32((a * _HALF - half_low) * inverse)
            symbol = symbol if symbol < top else top
            own[j] = symbol
            if keeps:
                kept = a - _value(half_low, half_step, symbol)
                line[j] = kept
                squares = accumulate(squares, kept * kept)
        if keeps:
            total += squares_of(squares, line)
    return total


@njit(nogil=True, cache=True)
def _take_up_and_quantize(values, gradient, keeps, symbols, block, lows, steps, top):  # type: ignore[no-untyped-def]
    """Takes up all blocks of a piece, and quantizes them up to the first that is not finite."""
    scale, total, done = np.float32(1 / (top + 1)), 0.0, 0
    for b in range(lows.size):
        first, last = b * block, (b + 1) * block
        r = values[first:last]
        low_key, high_key = take_up(r, gradient[first:last], keeps)
        if not keys_finite(low_key, high_key):
            take_up(values[last:], gradient[last:], keeps)
            break
        lows[b] = _from_key(low_key)
        steps[b] = _step_between(lows[b], _from_key(high_key), scale)
        total += _quantize(r, keeps, lows[b], steps[b], top, symbols[first:last])
        done += 1
    return total, done, done == lows.size


@njit(nogil=True, cache=True)
def add_values(symbols, block, lows, steps, out):  # type: ignore[no-untyped-def]
    """Adds to out, float32 [n], what symbols [n] stand for."""
    for b in range(lows.size):
        half_low, half_step = lows[b] * _HALF, steps[b] * _HALF
        first, last = b * block, min((b + 1) * block, symbols.size)
        s, o = symbols[first:last], out[first:last]
        for j in range(s.size):
            o[j] += _value(half_low, half_step, s[j])


def linear_rows(
    work: Quantizing, lows: NDArray[np.float32], steps: NDArray[np.float32], put_back: PutBack, threads: int
) -> list[QuantizedPass]:
    """`Ops.quantize` uniformly; `put_back` adds what symbols stand for to a residual."""
    top = np.int32((1 << work.bits) - 1)

    def take_up_and_quantize(part: Share) -> Report:
        tables = lows[part.tables], steps[part.tables]
        return cast(Report, _take_up_and_quantize(*part[:5], *tables, top))

    if fits_pieces(work):
        return over_pieces(work, take_up_and_quantize, put_back, threads)
    keys, broken = take_up_all(work, threads)
    for b, (low, high) in enumerate(keys):
        lows[b] = _from_key(low)
        steps[b] = _step_between(lows[b], _from_key(high), np.float32(2.0**-work.bits))
    return _quantize_all(work, lows, steps, [top] * len(work.gradients), broken, threads)


def _quantize_all(
    work: Quantizing,
    lows: NDArray[np.float32],
    steps: NDArray[np.float32],
    tops: Sequence[np.int32],
    broken: NDArray[np.bool_],
    threads: int,
) -> list[QuantizedPass]:
    """Quantizes what stands in residuals, of which a piece lies in one block, to symbols up to `tops`."""

    def quantize(part: Share) -> float:
        (low,), (step,), top = lows[part.tables], steps[part.tables], tops[part.parameter]
        return float(_quantize(part.values, part.keeps, low, step, top, part.symbols))

    return over_taken_up(work, quantize, broken, threads)


# What goes by the ranges of whole parameters


def extremes(given: Sequence[tuple[Tensor | None, Tensor]], threads: int) -> list[Extremes]:
    """Adds gradients to residuals, and finds the smallest and the largest element of each parameter."""
    residuals, gradients = [each for each, _ in given], [each for _, each in given]
    keys, broken = take_up_all(Quantizing(residuals, gradients, _NO_SYMBOLS, 8), threads)
    ends = [np.array(list(map(_from_key, column)), np.float32) for column in keys.T]
    return list(map(Extremes, *ends, broken.tolist()))


@njit(nogil=True, cache=True)
def _count(values, low, high, counts):  # type: ignore[no-untyped-def]
    symbols, step = np.empty(values.size, np.uint16), _step_between(low, high, np.float32(1 / counts.size))
    _quantize(values, False, low, step, np.int32(counts.size - 1), symbols)
    for symbol in symbols:
        counts[symbol] += 1


def count_symbols(values: NDArray[np.float32], bits: int, low: np.float32, high: np.float32) -> Numbers:
    """How often each symbol of so many bits occurs among values, all from low to high: int64 [2^bits]."""
    counts = np.zeros(1 << bits, np.int64)
    _count(values, low, high, counts)
    return counts


def quantize_between(
    work: Quantizing,
    bits: Sequence[int],
    ranges: Sequence[Ranges],
    lows: NDArray[np.float32],
    steps: NDArray[np.float32],
    threads: int,
) -> list[QuantizedPass]:
    """See `Ops.linear_between`; where a range is not finite, nothing is quantized."""
    for i, (own, width) in enumerate(zip(ranges, bits, strict=True)):
        lows[i], steps[i] = own.low, _step_between(own.low, own.high, np.float32(2.0**-width))
    tops = [np.int32((1 << width) - 1) for width in bits]
    broken = np.array([each.nonfinite for each in ranges])
    return _quantize_all(work, lows, steps, tops, broken, threads)
