"""The fused threshold pass on the CPU: chooses between the AVX-512 and the portable loops."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from . import avx512, portable

ThresholdRule = Literal["wgt", "bgt", "qgt"]
SPARE = avx512.SPARE

VALUE_DTYPE: dict[ThresholdRule, type[np.generic]] = {"wgt": np.float32, "bgt": np.uint8, "qgt": np.uint8}
"""What stands beside a word: the value (wgt), nothing (bgt) or the level (qgt)."""

_GROUPS: dict[str, Callable[..., int]] = {"wgt": avx512.wgt, "bgt": avx512.bgt, "qgt": avx512.qgt}
_ELEMENTS: dict[str, Callable[..., int]] = {"wgt": portable.wgt, "bgt": portable.bgt, "qgt": portable.qgt}
_HAS_AVX512 = avx512.supported()


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
    vectorized: bool = _HAS_AVX512,
) -> PassResult:
    """Adds the gradient to the residual, moves what reaches tau into the output, keeps the rest.

    Args:
        rule: `wgt`, `bgt` or `qgt` (Anoosheh, section 2.1).
        residual: contiguous float32 [n], changed in place.
        gradient: contiguous float32 [n].
        tau: the threshold, greater than 0.
        words: uint32, at least sent + n + SPARE long; receives index << 1 | sign, ascending.
        values: VALUE_DTYPE[rule], as long as `words` (one element will do for bgt).
        base: index of residual[0] within the update.
        sent: words that are there already.
        vectorized: use AVX-512.

    Returns:
        The new number of words, and what was seen on the way.
    """
    tally = np.zeros(2)
    done = 0
    if vectorized and residual.size >= avx512.LANES:
        done = residual.size - residual.size % avx512.LANES
        sent = _GROUPS[rule](residual, gradient, done, tau, base, words, values, sent, tally)
    if done < residual.size:
        sent = _ELEMENTS[rule](residual, gradient, done, tau, base, words, values, sent, tally)
    return PassResult(int(sent), float(tally[0]), bool(tally[1] > 0))
