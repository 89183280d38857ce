"""Adds updates of every element of many parameters to a bucket in one call."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..offsets import Offsets
from . import linear, minifloat, quantile

Numbers = NDArray[np.int64]


@njit(nogil=True, cache=True)
def _add_linear(symbols, at, block, lows, steps, out, starts):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n, first, blocks = at[i]
        tables = slice(first, first + blocks)
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        linear.dequantize(own, block if 0 < block < n else n, lows[tables], steps[tables], into, True)


@njit(nogil=True, cache=True)
def _add_quantile(symbols, at, block, means, exponents, out, starts):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n, first, blocks = at[i]
        tables = slice(first, first + blocks)
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        quantile.dequantize(own, block if 0 < block < n else n, means[tables], exponents[tables], into, True)


@njit(nogil=True, cache=True)
def _add_fp8(symbols, at, block, exponents, out, starts):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n, first, blocks = at[i]
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        length = block if 0 < block < n else n
        minifloat.from_fp8s(own, length, exponents[first : first + blocks], into, True)


@njit(nogil=True, cache=True)
def _add_halves(symbols, at, brain, out, starts):  # type: ignore[no-untyped-def]
    for i in range(starts.size):
        begin, n = at[i, 0], at[i, 1]
        own, into = symbols[begin : begin + n], out[starts[i] : starts[i] + n]
        minifloat.from_halves(own, brain, into, True)


def add(
    form: str,
    symbols: NDArray[Any],
    shape: tuple[int, int],
    tables: tuple[NDArray[Any], ...],
    offsets: Offsets,
    out: NDArray[np.float32],
    starts: Numbers,
) -> None:
    """Adds the values of some parameters.

    Args:
        form: of the values.
        symbols: of all parameters.
        shape: bits of a symbol, and elements of a block (0: a block for each parameter).
        tables: of all blocks, in the order of a message's.
        offsets: where each parameter's symbols and tables stand.
        out: float32 [bucket elements].
        starts: int64 [m], each parameter's first element there.
    """
    bits, block = shape
    if form == "linear":
        lows, steps = tables
        _add_linear(symbols, offsets.table, block, lows, steps, out, starts)
    elif form == "quantile":
        exponents, means = tables
        _add_quantile(symbols, offsets.table, block, means.reshape(-1, 1 << bits), exponents, out, starts)
    elif form == "fp8":
        (exponents,) = tables
        _add_fp8(symbols, offsets.table, block, exponents, out, starts)
    else:
        _add_halves(symbols, offsets.table, form == "bf16", out, starts)
