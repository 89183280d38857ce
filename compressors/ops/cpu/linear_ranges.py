"""What goes by the ranges of whole parameters, for many in one call; `linear.py` defines the symbols."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..array import host
from ..interface import Addends, Sample
from ..results import QuantizedPass, Quantizing
from .block_rows import ELEMENTS, keeps, opened, residual_of, table_of, take_up_rows
from .blockwise import finite_each
from .linear import Extremes, fill_steps, from_keys, quantize_known, step_between
from .rows import floats
from .sampling import hash_of
from .threads import portions, run_all

_NONE = np.empty(0, np.uint8)


def extremes_of_each(given: Sequence[Addends], threads: int) -> list[Extremes]:
    """`linear.extremes` of some parameters, at least one, each of which is one block."""
    residuals, gradients = zip(*given, strict=True)
    rows, by, _wide = table_of(Quantizing(residuals, gradients, _NONE, 8))
    keys = np.empty((len(rows), 2), np.int32)
    parts = portions(rows[:, ELEMENTS], threads)
    run_all([partial(take_up_rows, rows[at], keys[at]) for at in parts], threads)
    begins = np.flatnonzero(np.diff(by, prepend=-1))
    low_keys, high_keys = np.minimum.reduceat(keys[:, 0], begins), np.maximum.reduceat(keys[:, 1], begins)
    lows, highs = np.empty(low_keys.size, np.float32), np.empty(low_keys.size, np.float32)
    from_keys(low_keys, lows)
    from_keys(high_keys, highs)
    finite = finite_each(low_keys, high_keys)
    return [Extremes(lows[i : i + 1], highs[i : i + 1], not good) for i, good in enumerate(finite.tolist())]


@njit(nogil=True, cache=True)
def _count_rows(rows, lows, highs, scale, counts):  # type: ignore[no-untyped-def]
    top = np.int32(counts.shape[1] - 1)
    for i in range(rows.shape[0]):
        values, m = floats(rows[i, 0], rows[i, 1]), rows[i, 2]
        sample, symbols = np.empty(m, np.float32), np.empty(m, np.uint16)
        for j in range(m):  # as in `sampling.stratified_positions`
            low, high = j * values.size // m, (j + 1) * values.size // m
            sample[j] = values[low + np.int64(hash_of(j)) % (high - low)]
        steps = np.full(1, step_between(lows[i], highs[i], scale))
        quantize_known(None, sample, m, lows[i : i + 1], steps, top, symbols)
        for symbol in symbols:
            counts[i, symbol] += 1


def count_samples(samples: Sequence[Sample], bits: int, ranges: Sequence[Extremes]) -> NDArray[np.int64]:
    """How often each symbol occurs in samples that `linear` quantizes between layers' extremes.

    Args:
        samples: of each layer, at `sampling.stratified_positions`.
        bits: M, of a symbol.
        ranges: of each layer as one block; where they are not finite, nothing is counted.

    Returns:
        int64 [layers, 2^bits].
    """
    finite = np.array([not each.nonfinite for each in ranges])
    rows = np.array(
        [(values.data_ptr(), values.numel(), size) for values, size in samples], np.int64
    ).reshape(-1, 3)
    lows, highs = _side_by_side(ranges)
    counts = np.zeros((len(rows), 1 << bits), np.int64)
    found = np.zeros((int(finite.sum()), 1 << bits), np.int64)
    _count_rows(rows[finite].copy(), lows[finite], highs[finite], np.float32(2.0**-bits), found)
    counts[finite] = found
    return counts


@njit(nogil=True, cache=True)
def _quantize_rows(rows, all_lows, all_steps, tops, all_symbols, squares):  # type: ignore[no-untyped-def]
    for i in range(rows.shape[0]):
        gradient, symbols, _, at, _ = opened(rows[i], all_symbols)
        lows, steps, n, top = all_lows[at], all_steps[at], gradient.size, tops[at.start]
        if keeps(rows[i]):
            squares[i] = quantize_known(residual_of(rows[i]), gradient, n, lows, steps, top, symbols)
        else:
            squares[i] = quantize_known(None, gradient, n, lows, steps, top, symbols)


def quantize_between(
    work: Quantizing,
    bits: Sequence[int],
    ranges: Sequence[Extremes],
    lows: NDArray[np.float32],
    steps: NDArray[np.float32],
    threads: int,
) -> list[QuantizedPass]:
    """`linear.linear_pass` over parameters that are one block each, and have been added to residuals already.

    Args:
        work: the parameters.
        bits: of the symbols of each.
        ranges: theirs; where one is not finite, nothing is quantized.
        lows: float32 [parameters]; receives the smallest element of each.
        steps: float32 [parameters]; receives the width of a bin.
        threads: how many to use.
    """
    widths, finite = np.array(bits, np.int64), np.array([not each.nonfinite for each in ranges])
    lows[:], highs = _side_by_side(ranges)
    fill_steps(lows, highs, (2.0**-widths).astype(np.float32), steps)
    rows, by, _wide = table_of(work)
    rows, by = rows[finite[by]], by[finite[by]]
    symbols: NDArray[Any] = host(work.symbols)
    squares, tops = np.empty(len(rows)), ((1 << widths) - 1).astype(np.int32)
    run_all(
        [
            partial(_quantize_rows, rows[at], lows, steps, tops, symbols, squares[at])
            for at in portions(rows[:, ELEMENTS], threads)
        ],
        threads,
    )
    sums = np.zeros(len(work.gradients))
    np.add.at(sums, by, squares)  # in order
    return list(map(QuantizedPass, sums.tolist(), (~finite).tolist()))


def _side_by_side(ranges: Sequence[Extremes]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The lows and the highs of parameters that are one block each."""
    return np.concatenate([each.lows for each in ranges]), np.concatenate([each.highs for each in ranges])
