"""The fused threshold pass on the CPU: chooses between the AVX-512 and the portable loops."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import avx512, portable
from .threads import run_all, shares

ThresholdRule = Literal["wgt", "bgt", "qgt", "strom"]
SPARE = avx512.SPARE

VALUE_DTYPE: dict[ThresholdRule, type[np.generic]] = {
    "wgt": np.float32,
    "bgt": np.uint8,
    "qgt": np.uint8,
    "strom": np.uint8,
}
"""What stands beside a word: the value (wgt), the level (qgt) or nothing (bgt, strom)."""
WITHOUT_VALUES = ("bgt", "strom")

_GROUPS: dict[str, Callable[..., int]] = {
    "wgt": avx512.wgt,
    "bgt": avx512.bgt,
    "qgt": avx512.qgt,
    "strom": avx512.strom,
}
_ELEMENTS: dict[str, Callable[..., int]] = {
    "wgt": portable.wgt,
    "bgt": portable.bgt,
    "qgt": portable.qgt,
    "strom": portable.strom,
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
    """Adds the gradient to the residual, moves what reaches tau into the output, keeps the rest.

    Args:
        rule: `wgt`, `bgt`, `qgt` (Anoosheh, section 2.1) or `strom` (section 2.6: what exceeds tau).
        residual: contiguous float32 [n], changed in place.
        gradient: contiguous float32 [n].
        tau: the threshold, greater than 0.
        words: uint32, at least sent + n + SPARE long; receives index << 1 | sign, ascending.
        values: VALUE_DTYPE[rule], as long as `words` (one element will do for bgt and strom).
        base: index of residual[0] within the update.
        sent: words that are there already.
        threads: how many may share the work; the output does not depend on it.
        vectorized: use AVX-512.

    Returns:
        The new number of words, and what was seen on the way.
    """
    pieces = shares(residual.size, min(threads, residual.size // _LEAST_SHARE), avx512.LANES)
    if len(pieces) <= 1:
        return _pass(rule, residual, gradient, tau, words, values, base, sent, vectorized)
    # Each thread's output begins where it would if everything before it were sent, then moves down.
    results = run_all(
        [
            partial(
                _pass,
                rule,
                residual[low:high],
                gradient[low:high],
                tau,
                words,
                values,
                base + low,
                sent + low,
                vectorized,
            )
            for low, high in pieces
        ],
        threads,
    )
    start = sent
    for (low, _), result in zip(pieces, results, strict=True):
        there, count = start + low, result.sent - start - low
        words[sent : sent + count] = words[there : there + count]
        if rule not in WITHOUT_VALUES:
            values[sent : sent + count] = values[there : there + count]
        sent += count
    squares = sum(result.residual_squares for result in results)
    return PassResult(sent, squares, any(result.nonfinite for result in results))


def _pass(
    rule: ThresholdRule,
    residual: NDArray[np.float32],
    gradient: NDArray[np.float32],
    tau: np.float32,
    words: NDArray[np.uint32],
    values: NDArray[Any],
    base: int,
    sent: int,
    vectorized: bool,
) -> PassResult:
    tally = np.zeros(2)
    done = 0
    if vectorized and residual.size >= avx512.LANES:
        done = residual.size - residual.size % avx512.LANES
        sent = _GROUPS[rule](residual, gradient, done, tau, base, words, values, sent, tally)
    if done < residual.size:
        sent = _ELEMENTS[rule](residual, gradient, done, tau, base, words, values, sent, tally)
    return PassResult(int(sent), float(tally[0]), bool(tally[1] > 0))
