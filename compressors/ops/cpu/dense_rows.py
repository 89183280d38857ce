"""What the symbols of many updates stand for, written or added in one call."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..offsets import Offsets
from . import linear, minifloat, quantile

Numbers = NDArray[np.int64]


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


def write_values(
    form: str,
    symbols: NDArray[Any],
    shape: tuple[int, int],
    tables: tuple[NDArray[Any], ...],
    offsets: Offsets,
    out: NDArray[np.float32],
    starts: Numbers,
    add: bool,
) -> None:
    """Writes, or adds, the values of some updates.

    Args:
        form: of the values.
        symbols: of all updates.
        shape: bits of a symbol, and elements of a block (0: a block for each update).
        tables: of all blocks, in the order of a message's.
        offsets: where each update's symbols and tables stand.
        out: float32.
        starts: int64 [m], where each one's values begin there.
        add: add to `out` instead of overwriting it.
    """
    bits, block = shape
    if form == "linear":
        lows, steps = tables
        _write_linear(symbols, offsets.table, block, lows, steps, out, starts, add)
    elif form == "quantile":
        exponents, means = tables
        _write_quantile(
            symbols, offsets.table, block, means.reshape(-1, 1 << bits), exponents, out, starts, add
        )
    elif form == "fp8":
        (exponents,) = tables
        _write_fp8(symbols, offsets.table, block, exponents, out, starts, add)
    else:
        _write_halves(symbols, offsets.table, form == "bf16", out, starts, add)
