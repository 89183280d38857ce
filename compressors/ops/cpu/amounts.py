"""What values of many parameters stand for, written or added in one call."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..segments import Numbers
from . import linear, minifloat, quantile


@njit(nogil=True, cache=True)
def _write_linear(symbols, at, block, lows, steps, out, starts, add):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n, first, blocks = at[i]
        tables = slice(first, first + blocks)
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        linear.dequantize(own, block if 0 < block < n else n, lows[tables], steps[tables], into, add)


@njit(nogil=True, cache=True)
def _write_quantile(symbols, at, block, means, exponents, out, starts, add):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n, first, blocks = at[i]
        tables = slice(first, first + blocks)
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        quantile.dequantize(own, block if 0 < block < n else n, means[tables], exponents[tables], into, add)


@njit(nogil=True, cache=True)
def _write_fp8(symbols, at, block, exponents, out, starts, add):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n, first, blocks = at[i]
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        length = block if 0 < block < n else n
        minifloat.from_fp8s(own, length, exponents[first : first + blocks], into, add)


@njit(nogil=True, cache=True)
def _write_halves(symbols, at, brain, out, starts, add):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n = at[i, 0], at[i, 1]
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        minifloat.from_halves(own, brain, into, add)


@njit(nogil=True, cache=True)
def _write_floats(values, at, out, starts, add):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n = at[i, 0], at[i, 1]
        own, into = values[begin : begin + n], out[starts[i] : starts[i] + n]
        if add:
            for j in range(n):
                into[j] += own[j]
        else:
            into[:] = own


def write_values(
    form: str,
    symbols: NDArray[Any],
    block: int,
    tables: tuple[NDArray[Any], ...],
    rows: Numbers,
    out: NDArray[np.float32],
    starts: Numbers,
    add: bool,
) -> None:
    """See `Ops.write_values`; one call takes all."""
    if form == "linear":
        lows, steps = tables
        _write_linear(symbols, rows, block, lows, steps, out, starts, add)
    elif form == "quantile":
        exponents, means = tables
        by_block = means.reshape(max(exponents.size, 1), -1)
        _write_quantile(symbols, rows, block, by_block, exponents, out, starts, add)
    elif form == "fp8":
        (exponents,) = tables
        _write_fp8(symbols, rows, block, exponents, out, starts, add)
    elif form == "f32":
        _write_floats(symbols, rows, out, starts, add)
    else:
        _write_halves(symbols, rows, form == "bf16", out, starts, add)


@njit(nogil=True, cache=True)
def any_has(symbols, bits):  # type: ignore[no-untyped-def]
    """Whether some symbol has all of some bits."""
    many = 0
    for symbol in symbols:
        many |= (symbol & bits) == bits
    return many != 0
