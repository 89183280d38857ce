"""Symbols that follow from an element and the range of its block: bins of equal width, and short floats.

Linear (Oland and Raj, section 3.1 and Algorithms 1 and 2): the range of a block is split evenly into 2^b
bins, and an element becomes the centre of its bin. For a block with smallest element low and largest high,
all in float32, every operation rounded by itself:

    step   = high 2^-b - low 2^-b; 0 where that is less than 2^-126
    symbol = min(int((a / 2 - low / 2) (2 / step)), 2^b - 1); 0 where step is 0
    value  = h + h, where h = low / 2 + (step / 2) (symbol + 0.5)

The halves keep every number finite whatever the range is; short of subnormal numbers they change
nothing. A low or high that is zero is +0.0. Bins are counted from low upwards, as Algorithm 2 decodes
them (the paper's Quantize counts them from high downwards).

Short floats: float16, bfloat16, and float8 e4m3fn with an exponent per block. Rounding is to nearest, ties
to even, subnormal numbers included. What is larger than the largest finite number of a format becomes that
number; with a residual the rest is sent later. A block of float8 numbers is scaled by 2^-e. With m its
largest magnitude, e is the smallest integer for which m 2^-e <= 448, so that it lies in (224, 448]; but
-126 <= e <= 119, which keeps every value finite, and e = 0 where m = 0. Every value is exact in float32.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..array import Numbers, host
from ..interface import FP8_EXPONENTS, Batch, Extremes, Kept, Quantizing
from . import blockwise
from .bits import floats
from .quantile import read_table
from .threads import portions, run_all

_SMALLEST_STEP = np.float32(2.0**-126)
_HALF, _ONE, _TWO, _ZERO = np.float32(0.5), np.float32(1), np.float32(2), np.float32(0)
_FORMS = ("linear", "fp8", "fp16", "bf16", "f32", "quantile")
_LINEAR = (0,)


def form_of(name: str) -> tuple[int, ...]:
    """A form as kernels are told it: by a tuple's length, which is part of its type."""
    return (0,) * (1 + _FORMS.index(name))


@njit(nogil=True, cache=True)
def _from_key(key):  # type: ignore[no-untyped-def]
    return blockwise.from_order_key(key if key != np.int32(-1) else np.int32(0))  # -1 is the key of -0.0


@njit(nogil=True, cache=True)
def _step_between(low, high, scale):  # type: ignore[no-untyped-def]
    """The width of a bin between a block's extremes; scale is 2^-bits."""
    step = high * scale - low * scale
    return step if step >= _SMALLEST_STEP else _ZERO


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
def _scales_of(form, tables, b):  # type: ignore[no-untyped-def]
    """What symbols of a block go by: half of low and step, and 2 / step; or 2^-e and 2^e."""
    if len(form) == 1:
        low, step = tables[0][b], tables[1][b]
        return low * _HALF, step * _HALF, _TWO / step if step > _ZERO else _ZERO
    if len(form) == 2:
        exponent = tables[0][b]
        return blockwise.power_of_two(-exponent), blockwise.power_of_two(exponent), _ZERO
    return _ZERO, _ZERO, _ZERO


@njit(nogil=True, cache=True)
def _value(form, symbol, scales):  # type: ignore[no-untyped-def]
    if len(form) == 1:
        half = scales[0] + scales[1] * (np.float32(symbol) + _HALF)
        return half + half
    if len(form) == 2:
        return blockwise.from_fp8(symbol) * scales[1]
    if len(form) == 5:
        return symbol
    return blockwise.from_fp16(symbol) if len(form) == 3 else blockwise.from_bf16(symbol)


@njit(nogil=True, cache=True)
def _symbol_and_value(form, a, scales, top):  # type: ignore[no-untyped-def]
    """The symbol of a number, at most `top` in linear bins, and what it stands for."""
    if len(form) == 1:
        symbol = np.int32((a * _HALF - scales[0]) * scales[2])
        symbol = symbol if symbol < top else top
        return symbol, _value(form, symbol, scales)
    if len(form) == 2:
        symbol, value = blockwise.round_to_fp8(a * scales[0])
        return symbol, value * scales[1]
    return blockwise.round_to_fp16(a) if len(form) == 3 else blockwise.round_to_bf16(a)


@njit(nogil=True, cache=True)
def _quantize(form, values, keeps, scales, top, symbols):  # type: ignore[no-untyped-def]
    """Quantizes a block; with `keeps`, the rest stays in its place. Returns the sum of squares kept."""
    total = 0.0
    for first in range(0, values.size, blockwise.LINE):
        line, line_symbols = values[first : first + blockwise.LINE], symbols[first : first + blockwise.LINE]
        squares = _ZERO
        for j in range(line_symbols.size):
            line_symbols[j], value = _symbol_and_value(form, line[j], scales, top)
            if keeps:
                kept = line[j] - value
                line[j] = kept
                squares = blockwise.accumulate(squares, kept * kept)
        if keeps:
            total += blockwise.squares_of(squares, line)
    return total


@njit(nogil=True, cache=True)
def _quantize_shares(form, symbols, tables, top, shares, reports):  # type: ignore[no-untyped-def]
    """Takes up all blocks of shares, and quantizes those of a share up to the first that is not finite."""
    for s in range(shares.shape[0]):
        values, gradient, keeps = blockwise.operands(shares[s])
        block, b = shares[s, blockwise.BLOCK], shares[s, blockwise.FIRST_BLOCK]
        into = symbols[shares[s, blockwise.SYMBOL] : shares[s, blockwise.SYMBOL] + values.size]
        total, finite = 0.0, True
        for first in range(0, values.size, block):
            last = first + block
            r = values[first:last]
            low_key, high_key = blockwise.take_up(r, gradient[first:last], keeps)
            if not blockwise.keys_finite(low_key, high_key):
                blockwise.take_up(values[last:], gradient[last:], keeps)
                finite = False
                break
            if len(form) == 1:
                low = _from_key(low_key)
                tables[0][b] = low
                tables[1][b] = _step_between(low, _from_key(high_key), np.float32(1 / (top + 1)))
            elif len(form) == 2:
                tables[0][b] = _fp8_exponent(low_key, high_key)
            total += _quantize(form, r, keeps, _scales_of(form, tables, b), top, into[first:last])
            b += 1
        reports[s, 0], reports[s, 1], reports[s, 2] = total, b - shares[s, blockwise.FIRST_BLOCK], finite


@njit(nogil=True, cache=True)
def add_rows(form, symbols, block, tables, rows, addresses, fill, divisor):  # type: ignore[no-untyped-def]
    """Adds what symbols stand for to float32 memory, or (`fill`) to zeros; see `Ops.add_values`.

    Addresses are int64 [r], of each row's values; means of `quantile` are [blocks, bins]; divisor 1 is none.
    """
    values = np.empty(1 << 16 if len(form) == 6 else 0, np.float32)
    for i in range(rows.shape[0]):
        out, of_row = floats(addresses[i], rows[i, 1]), symbols[rows[i, 0] : rows[i, 0] + rows[i, 1]]
        length = block if 0 < block < of_row.size else max(of_row.size, 1)
        if fill:
            out[:] = _ZERO
        for first in range(0, of_row.size, length):
            s, o = of_row[first : first + length], out[first : first + length]
            b = rows[i, 2] + first // length
            if len(form) == 6:
                read_table(tables[1][b], tables[0][b], values)
                for j in range(s.size):
                    o[j] += values[s[j]]
            else:
                scales = _scales_of(form, tables, b)
                for j in range(s.size):
                    o[j] += _value(form, s[j], scales)
        if divisor != _ONE:
            for j in range(out.size):
                out[j] /= divisor


def quantize(form: str, work: Quantizing, put_back: blockwise.PutBack, threads: int) -> Kept:
    """`Ops.quantize` by ranges; `put_back` adds what symbols stand for to a residual."""
    if not work.tables:  # where blocks end does not matter then
        work = work._replace(block=blockwise.LINE)
    given = host(work.symbols), tuple(work.tables), np.int32((1 << work.bits) - 1)
    return blockwise.over_shares(work, partial(_quantize_shares, form_of(form), *given), threads, put_back)


# What goes by the ranges of whole parameters


@njit(nogil=True, cache=True)
def _take_up_shares(shares, lows, highs, broken):  # type: ignore[no-untyped-def]
    for s in range(shares.shape[0]):
        low, high = blockwise.take_up(*blockwise.operands(shares[s]))
        lows[s], highs[s] = _from_key(low), _from_key(high)
        broken[s] = not blockwise.keys_finite(low, high)


def extremes(batch: Batch, threads: int) -> Extremes:
    """Adds gradients to residuals, and finds the smallest and the largest element of each parameter."""
    shares, m = blockwise.shares_of(batch), len(batch)  # one of each
    extremes = Extremes(np.empty(m, np.float32), np.empty(m, np.float32), np.empty(m, np.bool_))
    groups = portions(shares[:, blockwise.ELEMENTS], threads)
    run_all(
        [partial(_take_up_shares, shares[at], *(column[at] for column in extremes)) for at in groups], threads
    )
    return extremes


@njit(nogil=True, cache=True)
def _count(values, low, high, counts):  # type: ignore[no-untyped-def]
    top, tables = np.int32(counts.size - 1), (np.array([low]), np.empty(1, np.float32))
    tables[1][0] = _step_between(low, high, np.float32(1 / counts.size))
    scales = _scales_of(_LINEAR, tables, 0)
    for value in values:
        counts[_symbol_and_value(_LINEAR, value, scales, top)[0]] += 1


def count_symbols(values: NDArray[np.float32], bits: int, low: np.float32, high: np.float32) -> Numbers:
    """How often each symbol of so many bits occurs among values, all from low to high: int64 [2^bits]."""
    counts = np.zeros(1 << bits, np.int64)
    _count(values, low, high, counts)
    return counts


@njit(nogil=True, cache=True)
def _quantize_between(symbols, bits, broken, tables, shares, reports):  # type: ignore[no-untyped-def]
    for s in range(shares.shape[0]):
        i = shares[s, blockwise.PARAMETER]
        if not broken[i]:
            values, _, keeps = blockwise.operands(shares[s])
            into = symbols[shares[s, blockwise.SYMBOL] : shares[s, blockwise.SYMBOL] + values.size]
            top = np.int32((1 << bits[i]) - 1)
            reports[s, 0] = _quantize(_LINEAR, values, keeps, _scales_of(_LINEAR, tables, i), top, into)
            reports[s, 2] = 1


@njit(nogil=True, cache=True)
def _write_ranges(lows, highs, bits, tables):  # type: ignore[no-untyped-def]
    for i in range(lows.size):
        tables[0][i], tables[1][i] = lows[i], _step_between(lows[i], highs[i], np.float32(1 / (1 << bits[i])))


def quantize_between(work: Quantizing, bits: Sequence[int], ranges: Extremes, threads: int) -> Kept:
    """See `Ops.linear_between`; where a range is not finite, nothing is quantized."""
    widths, both = np.array(bits, np.int64), tuple(work.tables)
    _write_ranges(ranges.low, ranges.high, widths, both)
    given = host(work.symbols), widths, ranges.nonfinite, both
    return blockwise.over_shares(work, partial(_quantize_between, *given), threads)
