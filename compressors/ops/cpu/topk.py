"""The k largest magnitudes of a whole parameter on the CPU, exactly, at little more than a threshold pass.

A sample gives a magnitude that the k-th largest almost surely reaches. The fused threshold pass sends
everything from there on, the exact threshold is selected among those few, and what lies below it goes
back. Where the sample misled, everything goes back and the threshold is selected among all elements:
that costs time, but the outcome is the same.
"""

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...config import LARGEST_TAU, SMALLEST_TAU
from . import avx512
from .sampling import sampled_magnitudes
from .selection import ranked
from .threshold import PassResult, threshold_pass

SAMPLE = 1 << 14
"""Elements looked at for a first guess."""

_HAS_AVX512 = avx512.supported()
_DEVIATIONS = 4
"""Standard deviations by which the guess aims low: it is too high once in some 30 000 passes."""


@dataclass(frozen=True)
class TopkPass:
    """What one pass over one parameter came to."""

    sent: int
    """Words in the output after the pass."""
    residual_squares: float
    """Sum of squares of the residual that was kept."""
    nonfinite: bool
    """Whether a NaN or Inf was met; then nothing was sent."""
    tau: np.float32
    """The smallest magnitude sent, but at most LARGEST_TAU, as messages want; SMALLEST_TAU if nothing was."""


@njit(nogil=True, cache=True)
def _put_back(words, values, base, residual):  # type: ignore[no-untyped-def]
    """Returns values to the residual they were taken from; returns their sum of squares."""
    squares = 0.0
    for i in range(words.size):
        residual[np.int64(words[i] >> np.uint32(1)) - base] = values[i]
        squares += np.float64(values[i]) * np.float64(values[i])
    return squares


@njit(nogil=True, cache=True)
def _trim(words, values, tau, ties, base, residual):  # type: ignore[no-untyped-def]
    """Puts back what is below tau and, of what equals tau, all but the first `ties`.

    What stays moves to the front of words and values.

    Returns:
        How many stay, and the sum of squares put back.
    """
    stay, squares = 0, 0.0
    for i in range(words.size):
        word, value = words[i], values[i]
        equal = abs(value) == tau
        if abs(value) > tau or (equal and ties > 0):
            ties -= equal
            words[stay], values[stay] = word, value
            stay += 1
        else:
            residual[np.int64(word >> np.uint32(1)) - base] = value
            squares += np.float64(value) * np.float64(value)
    return stay, squares


def _largest(magnitudes: NDArray[np.float32], rank: int) -> np.float32:
    """The rank-th largest (from 1), between the smallest and the largest tau; the smallest if too few."""
    if rank > magnitudes.size:
        return np.float32(SMALLEST_TAU)
    return np.float32(min(max(float(ranked(magnitudes, rank)), SMALLEST_TAU), LARGEST_TAU))


def sampled_magnitude(
    residual: NDArray[np.float32], gradient: NDArray[np.float32], density: float, sample: int = SAMPLE
) -> np.float32:
    """A threshold that about density * n elements reach: a quantile of a stratified sample.

    Args:
        residual: contiguous float32 [n].
        gradient: contiguous float32 [n].
        density: the fraction wanted, 0 to 1.
        sample: m, how many elements to look at; from n on all are looked at, and the result is exact.

    Returns:
        The ceil(density * m)-th largest finite |residual + gradient| of the sample, at least the
        largest one; between SMALLEST_TAU and LARGEST_TAU, and SMALLEST_TAU if there is none.

    Raises:
        ValueError: density or sample is out of its range.
    """
    check_sampling(density, sample)
    return magnitude_at(sampled_magnitudes(residual, gradient, min(sample, residual.size)), density)


def check_sampling(density: float, sample: int) -> None:
    """Refuses what `sampled_magnitude` refuses."""
    if not 0 <= density <= 1 or sample < 1:
        raise ValueError(f"density must be 0 to 1 and sample at least 1, not {density} and {sample}")


def magnitude_at(magnitudes: NDArray[np.float32], density: float) -> np.float32:
    """What a share of a sample of m finite magnitudes reaches; see `sampled_magnitude`."""
    # Rounded first, as 0.07 * 100 is a little more than 7.
    rank = math.ceil(round(density * magnitudes.size, 6))
    return _largest(magnitudes, max(rank, 1))


def _low_guess(residual: NDArray[np.float32], gradient: NDArray[np.float32], k: int) -> np.float32:
    """A threshold that at least k elements reach, almost surely; exactly k where all are looked at."""
    n = residual.size
    if n <= SAMPLE:
        return _largest(sampled_magnitudes(residual, gradient, n), k)
    expected = SAMPLE * k / n
    # Three more, for where hardly any are expected and their number is Poisson's.
    rank = math.ceil(expected + _DEVIATIONS * math.sqrt(expected) + 3)
    return _largest(sampled_magnitudes(residual, gradient, SAMPLE), rank)


def topk_pass(
    residual: NDArray[np.float32],
    gradient: NDArray[np.float32],
    k: int,
    words: NDArray[np.uint32],
    values: NDArray[np.float32],
    *,
    base: int = 0,
    sent: int = 0,
    threads: int = 1,
    vectorized: bool = _HAS_AVX512,
) -> TopkPass:
    """Adds the gradient to the residual, moves the k largest magnitudes into the output, keeps the rest.

    Of equal magnitudes the lower indices are sent. Fewer than k are sent where fewer reach
    SMALLEST_TAU, and none where an element's sum is not finite (it keeps its old residual).

    Args:
        residual: contiguous float32 [n], changed in place.
        gradient: contiguous float32 [n].
        k: how many to send at most, 0 or more.
        words: uint32, at least sent + n + threshold.SPARE long; receives index << 1 | sign, ascending.
        values: float32, as long as `words`; receives the elements sent.
        base: index of residual[0] within the update.
        sent: words that are there already.
        threads: at most so many work at once on the threshold pass.
        vectorized: use AVX-512.

    Returns:
        The new number of words, the exact threshold, and what was seen on the way.

    Raises:
        ValueError: k is negative.
    """
    if k < 0:
        raise ValueError(f"k must be 0 or more, not {k}")
    tau = _low_guess(residual, gradient, k) if k > 0 else np.float32(np.inf)

    def send(added: NDArray[np.float32], tau: np.float32) -> PassResult:
        return threshold_pass(
            "wgt",
            residual,
            added,
            tau,
            words,
            values,
            base=base,
            sent=sent,
            threads=threads,
            vectorized=vectorized,
        )

    result = send(gradient, tau)
    if not result.nonfinite and result.sent - sent < k and tau > np.float32(SMALLEST_TAU):
        _put_back(words[sent : result.sent], values[sent : result.sent], base, residual)
        tau = _largest(np.abs(residual), k)
        result = send(np.full(residual.size, -0.0, np.float32), tau)  # adding -0.0 changes no float
    taken_words, taken = words[sent : result.sent], values[sent : result.sent]
    if result.nonfinite:
        squares = result.residual_squares + _put_back(taken_words, taken, base, residual)
        return TopkPass(sent, squares, True, np.float32(SMALLEST_TAU))
    if taken.size == 0:
        return TopkPass(sent, result.residual_squares, False, np.float32(SMALLEST_TAU))
    magnitudes = np.abs(taken)
    at = max(taken.size - k, 0)
    tau = np.partition(magnitudes, at)[at]
    ties = k - int(np.count_nonzero(magnitudes > tau))
    stay, squares = _trim(taken_words, taken, tau, ties, base, residual)
    tau = min(tau, np.float32(LARGEST_TAU))
    return TopkPass(sent + stay, result.residual_squares + squares, False, tau)
