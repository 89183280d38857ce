"""The fused threshold pass on the CPU, over all parameters of a bucket in one call.

With AVX-512, whole groups of sixteen go through `avx512.py`. The rest, and on other CPUs everything, is
looked at block by block, twice while a block lies in the first-level cache: once to count what reaches tau,
which vectorizes, and then either to add (most blocks) or to walk through element by element. The bits are
the same.
"""

from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..array import Floats32, Words
from ..interface import Selected, ThresholdRule
from . import avx512
from .bits import ELEMENTS, Rows, floats
from .threads import LEAST_SHARE, portions, run_all

SPARE = avx512.LANES
"""Elements that output arrays must have beyond the last one written."""

_U1 = np.uint8
VALUE_DTYPE: dict[ThresholdRule, Any] = {"wgt": np.float32, "bgt": _U1, "qgt": _U1, "strom": _U1}
"""What stands beside a word: the value (wgt), the level (qgt) or nothing (bgt, strom)."""
WITHOUT_VALUES = ("bgt", "strom")

_BLOCK = 128
_GROUPS = 1024 * avx512.LANES
"""Elements between two hand-overs of the sum of squares from float32 lanes to a float64."""
_SHARE = 1 << 16
"""Elements, a multiple of LANES, that a thread takes together."""
_LARGEST = np.float32(np.finfo(np.float32).max)
_ZERO, _TOP_LEVEL = np.float32(0), np.float32(255)


def lanes_of(vectorized: bool) -> tuple[int, ...]:
    """How many elements kernels take at once, as a tuple's length, which is part of its type."""
    return (0,) * (avx512.LANES if vectorized else 1)


WGT: tuple[int, ...] = (0,) * (1 + avx512.RULES.index("wgt"))
"""A rule as kernels are told it: by a tuple's length."""


@njit(nogil=True, cache=True)
def _reached(residual, gradient, tau):  # type: ignore[no-untyped-def]
    count = np.uint32(0)
    for j in range(residual.size):
        # Not "abs >= tau": a NaN must be counted, so that it is found.
        count += np.uint32(not (abs(residual[j] + gradient[j]) < tau))
    return count


@njit(nogil=True, cache=True, fastmath={"reassoc", "nsz"})
def _sum_of_squares(block):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for j in range(block.size):
        total += block[j] * block[j]
    return total


@njit(nogil=True, cache=True)
def take_out(rule, lanes, residual, gradient, tau, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """The pass over one parameter.

    Args:
        rule: a tuple, one longer than the rule's place in `avx512.RULES`.
        lanes: see `lanes_of`.
        residual: float32 [n]; becomes residual + gradient less what is sent, but where that is not finite.
        gradient: float32 [n].
        tau: float32, greater than 0.
        base: index of residual[0] in the update.
        words: uint32; from `sent` on receives index << 1 | sign of every element sent, in order.
        values: float32 (wgt), uint8 (qgt) or anything (bgt, strom); receives the values beside the words.
        sent: how many words there are already.
        tally: float64 [2]; gains the residual's sum of squares, and the number of elements not finite.

    Returns:
        How many words there are now.
    """
    whole = residual.size - residual.size % len(lanes) if len(lanes) > 1 else 0
    for low in range(0, whole, _GROUPS):
        high = min(low + _GROUPS, whole)
        sent = avx512.send_groups(
            rule, lanes, residual, gradient, low, high, tau, base, words, values, sent, tally
        )
    wgt, qgt, strom = len(rule) == 1, len(rule) == 3, len(rule) == 4
    for low in range(whole, residual.size, _BLOCK):
        r, g = residual[low : low + _BLOCK], gradient[low : low + _BLOCK]
        if _reached(r, g, tau) == 0:
            for j in range(r.size):
                r[j] += g[j]
        else:
            for j in range(r.size):
                a = r[j] + g[j]
                if abs(a) < tau or (strom and abs(a) == tau):
                    r[j] = a
                elif abs(a) <= _LARGEST:
                    words[sent] = np.uint32((base + low + j) << 1) | np.uint32(a < _ZERO)
                    quantum = tau
                    if wgt:
                        values[sent] = a
                        quantum = abs(a)
                    elif qgt:
                        level = min(np.float32(np.floor(abs(a) / tau)), _TOP_LEVEL)
                        values[sent] = np.uint8(level)
                        quantum = level * tau
                    r[j] = a + quantum if a < _ZERO else a - quantum
                    sent += 1
                else:
                    tally[1] += 1
        tally[0] += _sum_of_squares(r)
    return sent


@njit(nogil=True, cache=True)
def _take_out_rows(rule, lanes, rows, taus, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    """`take_out` over a table's parameters; ends, int64 [m], receives how many words there are after each."""
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        sent = take_out(rule, lanes, residual, gradient, taus[i], rows[i, 3], words, values, sent, tallies[i])
        ends[i] = sent


def selected(ends: NDArray[np.int64], tallies: NDArray[np.float64], taus: NDArray[np.float32]) -> Selected:
    """From what kernels fill in: int64 [m]; float64 [m, 2], squares, and more than 0 if any is not finite."""
    return Selected(ends, tallies[:, 0].copy(), tallies[:, 1] > 0, taus)


def threshold_rows(
    rule: ThresholdRule, rows: Rows, taus: Floats32, words: Words, values: Any, threads: int, vectorized: bool
) -> Selected:
    """See `Ops.take_by_threshold`: `wgt`, `bgt`, `qgt` (Anoosheh, section 2.1) or `strom` (section 2.6).

    Words are at least SPARE longer than all elements; values, VALUE_DTYPE[rule], as long (of bgt and strom,
    one element will do). The output does not depend on threads or lanes.
    """
    run = partial(_take_out_rows, (0,) * (1 + avx512.RULES.index(rule)), lanes_of(vectorized))
    elements = int(rows[:, ELEMENTS].sum())
    threads = threads if threads == 1 else min(threads, elements // LEAST_SHARE)
    if threads <= 1:
        ends, tallies = np.empty(len(rows), np.int64), np.zeros((len(rows), 2))
        run(rows, taus, words, values, 0, ends, tallies)
        return selected(ends, tallies, taus)
    cut = [
        (number, residual + 4 * at, gradient + 4 * at, min(_SHARE, n - at), base + at)
        for number, (residual, gradient, n, base) in enumerate(rows.tolist())
        for at in range(0, max(n, 1), _SHARE)
    ]
    numbers, parts = np.array(cut)[:, 0], np.array(cut)[:, 1:].copy()
    ends, tallies = np.empty(len(parts), np.int64), np.zeros((len(parts), 2))
    # Each thread's output begins where it would if everything before it were sent, then moves down.
    before = list(accumulate(parts[:, ELEMENTS].tolist(), initial=0))
    groups, work = portions(parts[:, ELEMENTS], threads, -(-elements // threads)), []
    for at in groups:
        arguments = parts[at], taus[numbers[at]]
        work.append(partial(run, *arguments, words, values, before[at.start], ends[at], tallies[at]))
    run_all(work, threads)
    sent = 0
    for at in groups:
        start, count = before[at.start], int(ends[at.stop - 1]) - before[at.start]
        if sent != start:
            words[sent : sent + count] = words[start : start + count]
            if rule not in WITHOUT_VALUES:
                values[sent : sent + count] = values[start : start + count]
            ends[at] -= start - sent
        sent += count
    whole = np.zeros((len(rows), 2))
    np.add.at(whole, numbers, tallies)
    last = np.append(numbers[1:] != numbers[:-1], True)
    return selected(ends[last], whole, taus)
