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
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from ..array import host
from ..interface import LARGEST_MEAN, QUANTILE_EXPONENTS, Kept, Quantizing
from . import blockwise
from .bits import splat
from .blockwise import from_fp16, round_to_fp16
from .threads import portions

_LARGEST_MEAN = np.int32(LARGEST_MEAN)
_SORTED_AT_ONCE = 1 << 17
"""Elements whose keys are sorted before they are looked at again: they stay in the caches."""
_LARGEST = np.float32(np.finfo(np.float32).max)


# A search tree with sixteen-way nodes: how many of a block's sorted cuts an int32 key reaches.
#
# One step compares the key with sixteen cuts at once and counts; two steps find one of 256 bins. The
# vector operations are plain LLVM, which any CPU gets in the widths that it has.
#
# A tree is a row of levels, the coarsest first. The finest holds the lower ends of all bins, the first of
# them -2^31, so that every key reaches one; each level above holds every sixteenth of the one below. A
# level is filled up to a multiple of sixteen with 2^31 - 1, which no finite number's key reaches.

WAYS = 16
_I16, _I32, _I64 = (ir.IntType(bits) for bits in (16, 32, 64))
_VECTOR = ir.VectorType(_I32, WAYS)
_BELOW_ALL, _ABOVE_ALL = np.int32(-(2**31)), np.int32(2**31 - 1)


def _count_reached_by(typing_context: Any, tree: Any, node: Any, key: Any) -> Any:
    """How many of tree[node : node + 16] (contiguous int32) are at most key (int32), as an int64."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        address = builder.bitcast(builder.gep(data, [given[1]]), _VECTOR.as_pointer())
        cuts = builder.load(address, align=4)
        reached = builder.icmp_signed("<=", cuts, splat(builder, given[2], WAYS))
        return builder.zext(builder.ctpop(builder.bitcast(reached, _I16)), _I64)

    return types.int64(tree, types.int64, types.int32), generate


_count_reached: Any = intrinsic(_count_reached_by)


def tree_size(bits: int) -> int:
    """How many int32 the tree of 2^bits bins takes."""
    return sum(max(WAYS, 2 ** (bits - shift)) for shift in range(0, bits, 4))


@njit(nogil=True, cache=True)
def build_tree(ordered, bits, tree):  # type: ignore[no-untyped-def]
    """Fills a tree, int32 [tree_size(bits)], from a block's sorted keys, int32 [B], B at least 1.

    There are 2^bits bins; bin j begins at ordered[floor(j B / 2^bits)].
    """
    tree[:] = _ABOVE_ALL
    level = 0
    for shift in range((bits - 1) // 4 * 4, -1, -4):
        size = 1 << (bits - shift)
        tree[level] = _BELOW_ALL
        for i in range(1, size):
            tree[level + i] = ordered[((i << shift) * ordered.size) >> bits]
        level += max(size, WAYS)


@njit(nogil=True, cache=True)
def find_bins(tree, bits, keys, bins):  # type: ignore[no-untyped-def]
    """Writes the bin of every order key of a finite number: how many of the bins above 0 it reaches."""
    if bits <= 4:
        for j in range(bins.size):
            bins[j] = _count_reached(tree, 0, keys[j]) - 1
    elif bits <= 8:  # the usual case: two levels, and the second one begins at 16
        for j in range(bins.size):
            node = _count_reached(tree, 0, keys[j]) * WAYS
            bins[j] = node - WAYS + _count_reached(tree, node, keys[j]) - 1
    else:
        for j in range(bins.size):
            level, place = 0, 0
            for shift in range((bits - 1) // 4 * 4, -1, -4):
                place = place * WAYS + _count_reached(tree, level + place * WAYS, keys[j]) - 1
                level += max(1 << (bits - shift), WAYS)
            bins[j] = place


# A block


@njit(nogil=True, cache=True)
def _key(a):  # type: ignore[no-untyped-def]
    key = blockwise.order_key(a)
    return np.int32(0) if key == np.int32(-1) else key  # -1 is the key of -0.0


@njit(nogil=True, cache=True)
def _fill_keys(values, keys):  # type: ignore[no-untyped-def]
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
    return max((largest >> 23) - 127 - 14, QUANTILE_EXPONENTS[0]) if largest > 0 else 0


@njit(nogil=True, cache=True)
def _fraction_bits(size):  # type: ignore[no-untyped-def]
    bits = 47
    while (1 << (47 - bits)) < size:
        bits -= 1
    return bits


@njit(nogil=True, cache=True)
def _scaled(keys, i, scale):  # type: ignore[no-untyped-def]
    return np.int64(np.float64(blockwise.from_order_key(keys[np.uint64(i)])) * scale)


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
        magnitude = magnitude if magnitude < _LARGEST_MEAN else _LARGEST_MEAN
        table[j] = np.int32(short & np.int32(0x8000)) | magnitude


@njit(nogil=True, cache=True)
def _write_table(ordered, bits, table):  # type: ignore[no-untyped-def]
    """Writes the means of a block's bins, given its sorted keys; returns the block's exponent."""
    exponent, fraction = _exponent(ordered), _fraction_bits(ordered.size)
    scale = _power(fraction - exponent)
    totals, counts = np.empty(table.size, np.int64), np.empty(table.size, np.int64)
    i = np.int64(0)
    for j in range(1, table.size + 1):
        begin, end, total = i, _bin_end(ordered, j, bits, i), np.int64(0)
        while i < end:
            total += _scaled(ordered, i, scale)
            i += 1
        totals[j - 1], counts[j - 1] = total, end - begin
    _write_means(totals, counts, _power(-fraction), table)
    return exponent


@njit(nogil=True, cache=True)
def read_table(table, exponent, values):  # type: ignore[no-untyped-def]
    """Writes the values of a block's bins."""
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
        squares = blockwise.accumulate(squares, kept * kept)
    return squares


@njit(nogil=True, cache=True)
def _assign(a, keep, tree, bits, values, symbols):  # type: ignore[no-untyped-def]
    """Finds the bins of numbers, and keeps instead of these what their bins leave out, if that is wanted."""
    total = 0.0
    keys = np.empty(blockwise.LINE, np.int32)
    for first in range(0, a.size, blockwise.LINE):
        line, s = a[first : first + blockwise.LINE], symbols[first : first + blockwise.LINE]
        _fill_keys(line, keys)
        find_bins(tree, bits, keys, s)
        if keep:
            total += blockwise.squares_of(_keep(line, s, values), line)
    return total


@njit(nogil=True, cache=True)
def _take_up_keys(shares, keys, reports):  # type: ignore[no-untyped-def]
    """Takes up shares, and writes the keys of those that are finite, side by side."""
    at = 0
    for s in range(shares.shape[0]):
        values, gradient, keeps = blockwise.operands(shares[s])
        reports[s, 2] = blockwise.keys_finite(*blockwise.take_up(values, gradient, keeps))
        if reports[s, 2]:
            _fill_keys(values, keys[at : at + values.size])
        at += values.size


@njit(nogil=True, cache=True)
def _quantize_shares(shares, ordered, bits, symbols, means, exponents, tree, reports):  # type: ignore[no-untyped-def]
    """Quantizes shares of blocks whose sorted keys are known."""
    meant, at = np.empty(1 << bits, np.float32), 0
    for s in range(shares.shape[0]):
        values, _, keeps = blockwise.operands(shares[s])
        symbol, block, first_block = (
            shares[s, blockwise.SYMBOL],
            shares[s, blockwise.BLOCK],
            shares[s, blockwise.FIRST_BLOCK],
        )
        into = symbols[symbol : symbol + values.size]
        for k in range(shares[s, blockwise.BLOCKS] if reports[s, 2] else 0):
            first, last, b = k * block, min((k + 1) * block, values.size), first_block + k
            keys = ordered[at + first : at + last]
            exponents[b] = _write_table(keys, bits, means[b])
            read_table(means[b], exponents[b], meant)
            build_tree(keys, bits, tree)
            reports[s, 0] += _assign(values[first:last], keeps, tree, bits, meant, into[first:last])
            reports[s, 1] = k + 1
        at += values.size


def quantize(work: Quantizing, put_back: blockwise.PutBack, threads: int) -> Kept:
    """`Ops.quantize` to bins of equal population.

    A residual that would leave float32, which takes numbers beyond 2^126 of both signs in one bin, is
    kept at the largest float32.
    """
    exponents, by_block = work.tables[0], work.tables[1].reshape(-1, 1 << work.bits)

    def kernel(shares: blockwise.Shares, reports: NDArray[np.float64]) -> None:
        for at in portions(shares[:, blockwise.ELEMENTS], 2, _SORTED_AT_ONCE):
            chosen, ends = shares[at], np.cumsum(shares[at, blockwise.ELEMENTS])
            keys, tree = np.empty(int(chosen[:, 2].sum()), np.int32), np.empty(tree_size(work.bits), np.int32)
            _take_up_keys(chosen, keys, reports[at])
            for (_, _, size, _, block, *_), end in zip(chosen.tolist(), ends.tolist(), strict=True):
                rest = end - size % block
                if rest > end - size:
                    keys[end - size : rest].reshape(-1, block).sort(axis=1)
                keys[rest:end].sort()
            symbols = host(work.symbols)
            _quantize_shares(chosen, keys, work.bits, symbols, by_block, exponents, tree, reports[at])

    return blockwise.over_shares(work, kernel, threads, put_back, most=_SORTED_AT_ONCE)
