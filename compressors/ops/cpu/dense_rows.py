"""What the symbols of many updates stand for, written or added in one call."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..offsets import Numbers, Offsets
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


def write_values(
    form: str,
    symbols: NDArray[Any],
    shape: tuple[int, int],
    tables: tuple[NDArray[Any], ...],
    rows: Numbers,
    out: NDArray[np.float32],
    starts: Numbers,
    add: bool,
) -> None:
    """Writes, or adds, the values of some updates, or pieces of them.

    Args:
        form: of the values.
        symbols: of all updates.
        shape: bits of a symbol, and elements of a block (0: a block for each update).
        tables: of all blocks, in the order of a message's.
        rows: int64 [m, 4], where each one's symbols begin, how many; the first of its blocks, how many.
        out: float32.
        starts: int64 [m], where each one's values begin there.
        add: add to `out` instead of overwriting it.
    """
    bits, block = shape
    if form == "linear":
        lows, steps = tables
        _write_linear(symbols, rows, block, lows, steps, out, starts, add)
    elif form == "quantile":
        exponents, means = tables
        _write_quantile(symbols, rows, block, means.reshape(-1, 1 << bits), exponents, out, starts, add)
    elif form == "fp8":
        (exponents,) = tables
        _write_fp8(symbols, rows, block, exponents, out, starts, add)
    else:
        _write_halves(symbols, rows, form == "bf16", out, starts, add)


@njit(nogil=True, cache=True)
def _any_has(symbols, at, bits):  # type: ignore[no-untyped-def]
    """Whether some symbol has all of some bits."""
    found = False
    for i in range(at.shape[0]):
        begin, n = at[i, 0], at[i, 1]
        own, many = symbols[begin : begin + n], 0
        for j in range(n):
            many |= (own[j] & bits) == bits
        found |= many != 0
    return found


@njit(nogil=True, cache=True)
def _any_zero(symbols, at):  # type: ignore[no-untyped-def]
    found = False
    for i in range(at.shape[0]):
        begin, n = at[i, 0], at[i, 1]
        for symbol in symbols[begin : begin + n]:
            found |= symbol == 0
    return found


def valid(form: str, symbols: NDArray[Any], offsets: Offsets) -> bool:
    """Whether all symbols from the wire stand for finite numbers, and no level is 0."""
    never = _NEVER.get(form)
    if form == "qgt":
        return not _any_zero(symbols, offsets.table)
    if form in ("f32", "wgt"):
        symbols = symbols.view(np.uint32)
    return never is None or not _any_has(symbols, offsets.table, symbols.dtype.type(never))


_NEVER = {"fp8": 0x7F, "fp16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "wgt": 0x7F800000}
"""Bits that no number has all of: infinities and NaNs have."""
