"""The k largest magnitudes of a whole parameter on the CPU, exactly, at little more than a threshold pass.

A sample gives a magnitude that the k-th largest almost surely reaches. The fused threshold pass sends
everything from there on, the exact threshold is selected among those few, and what lies below it goes
back. Where the sample misled, everything goes back and the threshold is selected among all elements:
that costs time, but the outcome is the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...method import LARGEST_TAU, SMALLEST_TAU
from . import avx512
from .rows import BASE, ELEMENTS, GRADIENT, RESIDUAL, Rows, floats, table
from .sampling import sampled_magnitudes
from .selection import rank_of, ranked
from .threshold import SPARE, threshold_pass, threshold_rows

SAMPLE = 1 << 14
"""Elements looked at for a first guess."""

_LARGEST = np.float32(np.finfo(np.float32).max)
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
    row = table([residual.ctypes.data], [gradient.ctypes.data], [residual.size], [base])
    found = topk_rows(row, [k], words, values, sent=sent, threads=threads, vectorized=vectorized)
    (end,), (squares,), (nonfinite,), (tau,) = found
    return TopkPass(end, squares, nonfinite, np.float32(tau))


class TopkRows(NamedTuple):
    """What a pass over the parameters of a table came to, by parameter; see `TopkPass`."""

    ends: list[int]
    residual_squares: list[float]
    nonfinite: list[bool]
    taus: list[float]


def topk_rows(
    rows: Rows,
    counts: Sequence[int],
    words: NDArray[np.uint32],
    values: NDArray[np.float32],
    *,
    sent: int = 0,
    threads: int = 1,
    vectorized: bool = _HAS_AVX512,
) -> TopkRows:
    """`topk_pass` over the parameters of a table (see `rows.py`), in a few calls.

    Raises:
        ValueError: a count is negative.
    """
    ks = np.array(counts, np.int64)
    if ks.size and ks.min() < 0:
        raise ValueError(f"k must be 0 or more, not {ks.min()}")
    taus = np.full(len(rows), np.inf, np.float32)
    _guess_rows(rows, ks, taus)
    for i in np.flatnonzero((rows[:, ELEMENTS] > SAMPLE) & (ks > 0)).tolist():
        taus[i] = _low_guess(_floats_of(rows[i], RESIDUAL), _floats_of(rows[i], GRADIENT), int(ks[i]))
    found = threshold_rows(
        "wgt", rows, taus, words, values, sent=sent, threads=threads, vectorized=vectorized
    )
    ends, squares = np.array(found.ends, np.int64), np.array(found.residual_squares)
    broken = np.array(found.nonfinite, np.bool_)
    lack = (np.diff(ends, prepend=sent) < ks) & (taus > np.float32(SMALLEST_TAU)) & ~broken
    for i in np.flatnonzero(lack).tolist():
        begin = sent if i == 0 else int(ends[i - 1])
        squares[i], more = _take_again(rows[i], int(ks[i]), words, values, begin, ends[i:], int(ends[-1]))
        broken[i] = more
    _trim_rows(rows, ks, words, values, sent, ends, squares, broken, taus)
    return TopkRows(ends.tolist(), squares.tolist(), broken.tolist(), taus.tolist())


@njit(nogil=True, cache=True)
def _guess_rows(rows, ks, taus):  # type: ignore[no-untyped-def]
    """`_low_guess` for parameters of which all elements are looked at: what exactly k elements reach."""
    for i in range(rows.shape[0]):
        n, k = rows[i, 2], ks[i]
        if n > SAMPLE or k == 0:
            continue
        residual, gradient, magnitudes = floats(rows[i, 0], n), floats(rows[i, 1], n), np.empty(n, np.float32)
        count = 0
        for j in range(n):
            magnitude = abs(residual[j] + gradient[j])
            magnitudes[count] = magnitude
            count += magnitude <= _LARGEST
        taus[i] = SMALLEST_TAU
        if k <= count:
            taus[i] = _between(rank_of(magnitudes[:count], k))


@njit(nogil=True, cache=True)
def _between(magnitude):  # type: ignore[no-untyped-def]
    """The magnitude, or the smallest or the largest tau where it lies beyond."""
    return min(max(magnitude, np.float32(SMALLEST_TAU)), np.float32(LARGEST_TAU))


def _floats_of(row: NDArray[np.int64], column: int) -> NDArray[np.float32]:
    """The residual or the gradient of a row."""
    found: NDArray[np.float32] = _array_at(row[column], row[ELEMENTS])
    return found


@njit(cache=True)
def _array_at(address, elements):  # type: ignore[no-untyped-def]
    return floats(address, elements)


def _take_again(
    row: NDArray[np.int64],
    k: int,
    words: NDArray[np.uint32],
    values: NDArray[np.float32],
    begin: int,
    ends: NDArray[np.int64],
    stop: int,
) -> tuple[float, bool]:
    """Takes what a guess that was too high has missed; moves what stands behind.

    Args:
        row: of the parameter.
        k: how many it sends.
        words: see `topk_rows`.
        values: see `topk_rows`.
        begin: the first of its words.
        ends: where its words end, and those of the parameters behind it.
        stop: where the last one's end.

    Returns:
        The sum of squares kept, and whether something was not finite.
    """
    residual, base, end = _floats_of(row, RESIDUAL), int(row[BASE]), int(ends[0])
    _put_back(words[begin:end], values[begin:end], base, residual)
    tau = _largest(np.abs(residual), k)
    mine, beside = np.empty(residual.size + SPARE, np.uint32), np.empty(residual.size + SPARE, np.float32)
    nothing = np.full(residual.size, -0.0, np.float32)  # adding -0.0 changes no float
    found = threshold_pass("wgt", residual, nothing, tau, mine, beside, base=base)
    for array, own in ((words, mine), (values, beside)):
        behind = array[end:stop].copy()
        array[begin : begin + found.sent] = own[: found.sent]
        array[begin + found.sent : begin + found.sent + behind.size] = behind
    ends += begin + found.sent - end
    return found.residual_squares, found.nonfinite


@njit(nogil=True, cache=True)
def _trim_rows(rows, ks, words, values, sent, ends, squares, broken, taus):  # type: ignore[no-untyped-def]
    """Keeps the k largest of what each parameter sent, nothing where it is not finite; finds its tau."""
    begin = sent
    for i in range(rows.shape[0]):
        end, k, residual = ends[i], ks[i], floats(rows[i, 0], rows[i, 2])
        own_words, own = words[begin:end], values[begin:end]
        begin, stay, taus[i] = end, 0, SMALLEST_TAU
        if broken[i]:
            squares[i] += _put_back(own_words, own, rows[i, 3], residual)
        elif own.size:
            tau = rank_of(np.abs(own), min(own.size, k))
            above = 0
            for value in own:
                above += abs(value) > tau
            stay, more = _trim(own_words, own, tau, k - above, rows[i, 3], residual)
            squares[i] += more
            taus[i] = min(tau, np.float32(LARGEST_TAU))
        for j in range(stay):
            words[sent + j], values[sent + j] = own_words[j], own[j]
        sent += stay
        ends[i] = sent
