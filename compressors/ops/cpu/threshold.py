"""The fused threshold pass on the CPU, over all parameters of a bucket in one call.

It chooses between the AVX-512 and the portable loops.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..results import ThresholdRule
from . import avx512, portable
from .rows import COLUMNS, ELEMENTS, Rows, table
from .threads import run_all

SPARE = avx512.SPARE

VALUE_DTYPE: dict[ThresholdRule, type[np.generic]] = {
    "wgt": np.float32,
    "bgt": np.uint8,
    "qgt": np.uint8,
    "strom": np.uint8,
}
"""What stands beside a word: the value (wgt), the level (qgt) or nothing (bgt, strom)."""
WITHOUT_VALUES = ("bgt", "strom")

_GROUPS: dict[str, Callable[..., None]] = {
    "wgt": avx512.wgt_rows,
    "bgt": avx512.bgt_rows,
    "qgt": avx512.qgt_rows,
    "strom": avx512.strom_rows,
}
_ELEMENTS: dict[str, Callable[..., None]] = {
    "wgt": portable.wgt_rows,
    "bgt": portable.bgt_rows,
    "qgt": portable.qgt_rows,
    "strom": portable.strom_rows,
}
_HAS_AVX512 = avx512.supported()
_LEAST_SHARE = 2**16
"""Elements below which a thread of its own costs more than it saves."""


@dataclass(frozen=True)
class PassResult:
    """What one pass over one parameter came to."""

    sent: int
    """Words in the output after the pass."""
    residual_squares: float
    """Sum of squares of the residual that was kept."""
    nonfinite: bool
    """Whether a NaN or Inf was met; such elements are neither sent nor kept."""


@dataclass(frozen=True)
class RowsResult:
    """What a pass over the parameters of a table came to, by parameter."""

    ends: list[int]
    """Words in the output after each one."""
    residual_squares: list[float]
    """Of the residual that was kept."""
    nonfinite: list[bool]
    """Whether a NaN or Inf was met; such elements are neither sent nor kept."""

    @classmethod
    def of(cls, ends: NDArray[np.int64], tallies: NDArray[np.float64]) -> "RowsResult":
        """From what the loops fill in: int64 [m]; float64 [m, 2], squares, and if any are not finite."""
        squares, broken = tallies.T.tolist()
        return cls(ends.tolist(), squares, [each > 0 for each in broken])


def threshold_rows(
    rule: ThresholdRule,
    rows: Rows,
    taus: NDArray[np.float32],
    words: NDArray[np.uint32],
    values: NDArray[Any],
    *,
    sent: int = 0,
    threads: int = 1,
    vectorized: bool = _HAS_AVX512,
) -> RowsResult:
    """Adds gradients to residuals, moves what reaches tau into the output, keeps the rest.

    Args:
        rule: `wgt`, `bgt`, `qgt` (Anoosheh, section 2.1) or `strom` (section 2.6: what exceeds tau).
        rows: int64 [m, COLUMNS], see `rows.py`; residuals are changed in place.
        taus: float32 [m], greater than 0.
        words: uint32, at least SPARE longer than what is there and all elements; receives
            index << 1 | sign, parameter behind parameter, each one's ascending.
        values: VALUE_DTYPE[rule], as long as `words` (one element will do for bgt and strom).
        sent: words that are there already.
        threads: how many may share the work; the output does not depend on it.
        vectorized: use AVX-512.
    """
    run = (_GROUPS if vectorized else _ELEMENTS)[rule]
    threads = threads if threads == 1 else min(threads, int(rows[:, ELEMENTS].sum()) // _LEAST_SHARE)
    if threads <= 1:
        ends, tallies = np.empty(len(rows), np.int64), np.zeros((len(rows), 2))
        run(rows, taus, words, values, sent, ends, tallies)
        return RowsResult.of(ends, tallies)
    numbers, parts, cuts = _cut(rows, -(-int(rows[:, ELEMENTS].sum()) // threads))
    ends, tallies = np.empty(len(parts), np.int64), np.zeros((len(parts), 2))
    # Each thread's output begins where it would if everything before it were sent, then moves down.
    before = [sent + each for each in accumulate(parts[:, ELEMENTS].tolist(), initial=0)]
    run_all(
        [
            partial(
                run,
                parts[low:high],
                taus[numbers[low:high]],
                words,
                values,
                before[low],
                ends[low:high],
                tallies[low:high],
            )
            for low, high in cuts
        ],
        threads,
    )
    for low, high in cuts:
        there, count = before[low], int(ends[high - 1]) - before[low]
        if sent != there:
            words[sent : sent + count] = words[there : there + count]
            if rule not in WITHOUT_VALUES:
                values[sent : sent + count] = values[there : there + count]
            ends[low:high] -= there - sent
        sent += count
    whole = np.zeros((len(rows), 2))
    np.add.at(whole, numbers, tallies)
    last = np.append(numbers[1:] != numbers[:-1], True)
    return RowsResult.of(ends[last], whole)


def _cut(rows: Rows, share: int) -> tuple[NDArray[np.int64], Rows, list[tuple[int, int]]]:
    """Rows cut for threads that have about `share` elements each.

    Returns:
        Of which row each piece is, the pieces, and which of them each thread has.
    """
    numbers, pieces, cuts, begun, left = [], [], [], 0, share
    for number, (residual, gradient, elements, base) in enumerate(rows.tolist()):
        at = 0
        while True:
            size = elements - at
            if size > left:
                size = min(size, -(-left // avx512.LANES) * avx512.LANES)
            numbers.append(number)
            pieces.append((residual + 4 * at, gradient + 4 * at, size, base + at))
            at, left = at + size, left - size
            if left <= 0:
                cuts.append((begun, len(pieces)))
                begun, left = len(pieces), share
            if at == elements:
                break
    if begun < len(pieces):
        cuts.append((begun, len(pieces)))
    return np.array(numbers), np.array(pieces, np.int64).reshape(-1, COLUMNS), cuts


def threshold_pass(
    rule: ThresholdRule,
    residual: NDArray[np.float32],
    gradient: NDArray[np.float32],
    tau: np.float32,
    words: NDArray[np.uint32],
    values: NDArray[Any],
    *,
    base: int = 0,
    sent: int = 0,
    threads: int = 1,
    vectorized: bool = _HAS_AVX512,
) -> PassResult:
    """The same for one parameter, whose arrays are contiguous float32 [n]."""
    row = table([residual.ctypes.data], [gradient.ctypes.data], [residual.size], [base])
    found = threshold_rows(
        rule,
        row,
        np.full(1, tau, np.float32),
        words,
        values,
        sent=sent,
        threads=threads,
        vectorized=vectorized,
    )
    return PassResult(found.ends[0], found.residual_squares[0], found.nonfinite[0])
