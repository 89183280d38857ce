"""Bins of equal population in blocks, each standing for its mean: Rae, sections 2.3.1 and 2.3.2.

For one block of B elements and b bits, with -0.0 taken as 0.0:

    c_j      = sorted(a)[floor(j B / 2^b)], j = 1 .. 2^b - 1
    symbol   = how many c_j are at most a, so that equal elements share a bin
    e        = floor(log2(largest magnitude)) - 14, at least -128; 0 where all elements are 0
    S, count = over a bin's elements, the sum of int(a 2^(F-e)), and how many they are, where
               F = 47 - ceil(log2(B)) and int drops the fraction
    mean     = S / count 2^-F in float64; rounded to float32, then to float16, magnitude at most 32752;
               0 for an empty bin
    value    = mean 2^e, rounded to float32 where it is subnormal

Sums of integers come out the same in any order, so neither threads nor a GPU change a bit. What int
drops is less than 2^-F 2^e; the largest magnitude is at least 2^14 2^e (but for numbers near 2^-128).
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..results import QuantizedPass
from ..segments import block_length
from .blockwise import (
    LINE,
    Piece,
    accumulate,
    from_order_key,
    keys_finite,
    order_key,
    over,
    pieces,
    squares_of,
    take_up_all,
)
from .float_formats import from_fp16, round_to_fp16
from .search16 import build_tree, find_bins, tree_size

EXPONENTS = (-128, 113)
"""The smallest and the largest exponent of a block."""

LARGEST_MEAN = np.int32(0x77FF)
"""The float16 bits of 32752, the largest magnitude in a table: times 2^113 it is finite."""

SORTED_AT_ONCE = 1 << 17
"""Elements whose keys are sorted before they are looked at again."""
_LARGEST = np.float32(np.finfo(np.float32).max)


@njit(nogil=True, cache=True)
def _key(a):  # type: ignore[no-untyped-def]
    key = order_key(a)
    return np.int32(0) if key == np.int32(-1) else key  # -1 is the key of -0.0


@njit(nogil=True, cache=True)
def fill_keys(values, keys):  # type: ignore[no-untyped-def]
    """Writes the order keys of numbers, with -0.0 taken as 0.0."""
    for j in range(values.size):
        keys[j] = _key(values[j])


@njit(nogil=True, cache=True)
def _power(exponent):  # type: ignore[no-untyped-def]
    """2^exponent in float64, exponent in -1022 to 1023."""
    return np.int64((np.int64(exponent) + 1023) << 52).view(np.float64)


@njit(nogil=True, cache=True)
def _exponent(ordered):  # type: ignore[no-untyped-def]
    # The key of a negative number is the complement of its magnitude's bits.
    largest = max(np.int64(ordered[-1]), ~np.int64(ordered[0]))
    return max((largest >> 23) - 127 - 14, EXPONENTS[0]) if largest > 0 else 0


@njit(nogil=True, cache=True)
def _fraction_bits(size):  # type: ignore[no-untyped-def]
    bits = 47
    while (1 << (47 - bits)) < size:
        bits -= 1
    return bits


@njit(nogil=True, cache=True)
def _scaled(keys, i, scale):  # type: ignore[no-untyped-def]
    return np.int64(np.float64(from_order_key(keys[np.uint64(i)])) * scale)


@njit(nogil=True, cache=True)
def _bin_end(ordered, j, bits, begin):  # type: ignore[no-untyped-def]
    """Where bin j - 1, which begins at `begin`, ends: at the first of the elements equal to c_j."""
    cut, cut_before = (j * ordered.size) >> bits, ((j - 1) * ordered.size) >> bits
    if cut == ordered.size:  # there is no c_j behind the last bin
        return cut
    if j > 1 and ordered[cut] == ordered[cut_before]:  # c_j is c_(j-1), and so nothing lies between them
        return begin
    while cut > cut_before and ordered[cut - 1] == ordered[cut]:
        cut -= 1
    return cut


@njit(nogil=True, cache=True)
def _write_means(totals, counts, unscale, table):  # type: ignore[no-untyped-def]
    for j in range(table.size):
        count = max(counts[j], 1)
        short, _ = round_to_fp16(np.float32(np.float64(totals[j]) / np.float64(count) * unscale))
        magnitude = np.int32(short & np.int32(0x7FFF))
        magnitude = magnitude if magnitude < LARGEST_MEAN else LARGEST_MEAN
        table[j] = np.int32(short & np.int32(0x8000)) | magnitude


@njit(nogil=True, cache=True)
def _write_table(ordered, bits, table):  # type: ignore[no-untyped-def]
    """Writes the means of a block's bins, given its sorted keys; returns the block's exponent."""
    exponent, fraction = _exponent(ordered), _fraction_bits(ordered.size)
    scale = _power(fraction - exponent)
    totals, counts = np.empty(table.size, np.int64), np.empty(table.size, np.int64)
    i = 0
    for j in range(1, table.size + 1):
        begin, end, total = i, _bin_end(ordered, j, bits, i), np.int64(0)
        while i < end:
            total += _scaled(ordered, i, scale)
            i += 1
        totals[j - 1], counts[j - 1] = total, end - begin
    _write_means(totals, counts, _power(-fraction), table)
    return exponent


@njit(nogil=True, cache=True)
def _read_table(table, exponent, values):  # type: ignore[no-untyped-def]
    scale = _power(exponent)
    for j in range(table.size):
        values[j] = np.float32(np.float64(from_fp16(np.int32(table[j]))) * scale)


@njit(nogil=True, cache=True)
def _keep(residual, symbols, values):  # type: ignore[no-untyped-def]
    squares = np.float32(0)
    for j in range(residual.size):
        kept = residual[j] - values[np.uint64(symbols[j])]
        # Two ends of float32 in one bin lie further apart than float32 reaches.
        kept = kept if kept < _LARGEST else _LARGEST
        kept = kept if kept > -_LARGEST else -_LARGEST
        residual[j] = kept
        squares = accumulate(squares, kept * kept)
    return squares


@njit(nogil=True, cache=True)
def _assign(a, keep, tree, bits, values, symbols):  # type: ignore[no-untyped-def]
    """Finds the bins of numbers, and keeps instead of these what their bins leave out, if that is wanted."""
    total = 0.0
    keys = np.empty(LINE, np.int32)
    for first in range(0, a.size, LINE):
        line, s = a[first : first + LINE], symbols[first : first + LINE]
        fill_keys(line, keys)
        find_bins(tree, bits, keys, s)
        if keep:
            total += squares_of(_keep(line, s, values), line)
    return total


@njit(nogil=True, cache=True)
def quantize_blocks(a, keep, ordered, block, bits, tree, symbols, tables, exponents):  # type: ignore[no-untyped-def]
    """Quantizes blocks whose sorted keys are known; returns the sum of squares kept."""
    total = 0.0
    values = np.empty(1 << bits, np.float32)
    for b in range(exponents.size):
        first, last = b * block, min((b + 1) * block, a.size)
        exponents[b] = _write_table(ordered[first:last], bits, tables[b])
        _read_table(tables[b], exponents[b], values)
        build_tree(ordered[first:last], bits, tree)
        total += _assign(a[first:last], keep, tree, bits, values, symbols[first:last])
    return total


def _sorted_keys(a: NDArray[np.float32], block: int, threads: int) -> NDArray[np.int32]:
    """The order keys, sorted within each block of `block` and the shorter one behind them."""
    keys = np.empty(a.size, np.int32)

    def fill(piece: Piece) -> None:
        fill_keys(a[piece.elements], keys[piece.elements])

    over(pieces(a.size, 0), fill, threads)
    even = keys.size - keys.size % block
    keys[:even].reshape(-1, block).sort(axis=1)
    keys[even:].sort()
    return keys


def _one_block(
    a: NDArray[np.float32],
    keep: bool,
    bits: int,
    symbols: NDArray[Any],
    table: NDArray[np.uint16],
    threads: int,
) -> tuple[int, float]:
    """Quantizes a block that is larger than a piece; returns its exponent and the squares kept."""
    ordered = _sorted_keys(a, a.size, threads)
    exponent = int(_write_table(ordered, bits, table))
    tree, values = np.empty(tree_size(bits), np.int32), np.empty(1 << bits, np.float32)
    build_tree(ordered, bits, tree)
    _read_table(table, exponent, values)

    def assign(piece: Piece) -> float:
        at = piece.elements
        squares: float = _assign(a[at], keep, tree, bits, values, symbols[at])
        return squares

    return exponent, sum(over(pieces(a.size, 0), assign, threads), 0.0)


def quantile_pass(
    residual: NDArray[np.float32] | None,
    gradient: NDArray[np.float32],
    bits: int,
    block: int,
    symbols: NDArray[Any],
    tables: NDArray[np.uint16],
    exponents: NDArray[np.int8],
    threads: int = 1,
) -> QuantizedPass:
    """Quantizes residual + gradient and keeps in the residual what the symbols leave out.

    A residual that would leave float32, which takes numbers beyond 2^126 of both signs in one bin, is
    kept at the largest float32.

    Args:
        residual: contiguous float32 [n], changed in place; None for zeros that nobody keeps.
        gradient: contiguous float32 [n].
        bits: of a symbol, 1 to 16.
        block: elements of a block, the last one may be shorter; 0 for one block.
        symbols: uint8 [n] for up to 8 bits, uint16 [n] above; receives the symbols.
        tables: uint16 [blocks, 2^bits]; receives the float16 bits of the bins' means times 2^-e.
        exponents: int8 [blocks]; receives e.
        threads: how many to use; the result does not depend on it.

    Returns:
        What was kept; see `QuantizedPass` for sums that are not finite.
    """
    n, block = gradient.size, block_length(gradient.size, block)
    low_keys, high_keys = take_up_all(residual, gradient, 0, threads)
    if n and not keys_finite(low_keys[0], high_keys[0]):
        return QuantizedPass(0.0, True)
    keep = residual is not None
    a = gradient if residual is None else residual
    if block > SORTED_AT_ONCE:
        total = 0.0
        for b, first in enumerate(range(0, n, block)):
            at = slice(first, first + block)
            exponents[b], squares = _one_block(a[at], keep, bits, symbols[at], tables[b], threads)
            total += squares
        return QuantizedPass(total, False)

    def quantize(piece: Piece) -> float:
        at, b = piece.elements, piece.blocks
        ordered, tree = _sorted_keys(a[at], block, 1), np.empty(tree_size(bits), np.int32)
        squares: float = quantize_blocks(
            a[at], keep, ordered, block, bits, tree, symbols[at], tables[b], exponents[b]
        )
        return squares

    return QuantizedPass(sum(over(pieces(n, block, SORTED_AT_ONCE), quantize, threads), 0.0), False)


@njit(nogil=True, cache=True)
def dequantize(symbols, block, tables, exponents, out, add):  # type: ignore[no-untyped-def]
    """Writes to out, float32 [n], or adds, what symbols [n] stand for."""
    values = np.empty(tables.shape[1], np.float32)
    for b in range(exponents.size):
        first, last = b * block, min((b + 1) * block, symbols.size)
        s, o = symbols[first:last], out[first:last]
        _read_table(tables[b], exponents[b], values)
        if add:
            for j in range(s.size):
                o[j] += values[s[j]]
        else:
            for j in range(s.size):
                o[j] = values[s[j]]


def quantile_tables_valid(tables: NDArray[np.uint16], exponents: NDArray[np.int8]) -> bool:
    """Whether tables from the wire are such as `quantile_pass` writes; then all values are finite."""
    means_fit = not tables.size or int((tables & np.uint16(0x7FFF)).max()) <= LARGEST_MEAN
    return bool(means_fit and exponents.max(initial=0) <= EXPONENTS[1])
