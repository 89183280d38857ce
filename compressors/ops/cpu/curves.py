"""What a layer would send and keep with each of several thresholds, in one walk over sorted magnitudes."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...method.base import ThresholdRule

_MOST = 255
"""Taus that a level of qgt stands for, at most."""
_QUANTA = {"wgt": 0, "bgt": 1, "strom": 1, "qgt": 2}
"""What is sent of an element: all of it, one tau, or several."""


@njit(nogil=True, cache=True)
def _walk(ascending, shares, quantum, smallest, largest, curve):  # type: ignore[no-untyped-def]
    m = ascending.size
    some, others, i = 0.0, 0.0, m % 2  # two sums: each addition waits for the one before
    if i:
        some = np.float64(ascending[0]) ** 2
    while i < m:
        some += np.float64(ascending[i]) ** 2
        others += np.float64(ascending[i + 1]) ** 2
        i += 2
    total, reached, squares, before = some + others, 0.0, 0.0, 0
    top, top_reached, top_squares = 0, 0.0, 0.0
    for choice in range(shares.size):
        # Rounded first, as 0.07 * 100 is a little more than 7.
        rank = max(int(np.ceil(np.rint(shares[choice] * m * 1e6) / 1e6)), 1)
        for j in range(before, rank):
            value = np.float64(ascending[m - 1 - j])
            reached += value
            squares += value * value
        before = rank
        tau = min(max(np.float64(ascending[m - rank]), smallest), largest)
        unsent = total - squares
        if quantum == 1:
            unsent += squares - 2 * tau * reached + rank * tau * tau
        elif quantum == 2:
            while top < rank and np.float64(ascending[m - 1 - top]) >= (_MOST + 1) * tau:
                value = np.float64(ascending[m - 1 - top])
                top_reached += value
                top_squares += value * value
                top += 1
            # Of the largest so many taus are sent, and no more. Of others one, or more: where tau is small,
            # rests are spread evenly below it.
            unsent += top_squares - 2 * _MOST * tau * top_reached + top * (_MOST * tau) ** 2
            below, count = squares - top_squares, rank - top
            one = below - 2 * tau * (reached - top_reached) + count * tau * tau
            unsent += min(one, count * tau * tau / 3)
        curve[0, choice], curve[1, choice], curve[2, choice] = rank / m, tau, max(unsent, 0.0) / m


def walk(
    ascending: NDArray[np.float32],
    shares: NDArray[np.float64],
    rule: ThresholdRule,
    smallest: float,
    largest: float,
) -> NDArray[np.float64]:
    """A curve's points.

    Args:
        ascending: contiguous float32 [m], finite magnitudes; m at least 1.
        shares: float64 [C], ascending, greater than 0, at most 1.
        rule: what stands for an element that is sent.
        smallest: the least tau.
        largest: the largest tau.

    Returns:
        float64 [3, C]: shares of the m that are sent; the smallest magnitudes sent, within the two taus; the
        sums of squares of what is not sent, over m.
    """
    curve = np.empty((3, shares.size))
    _walk(ascending, shares, _QUANTA[rule], smallest, largest, curve)
    return curve


@njit(nogil=True, cache=True)
def _sent(elements, log_taus, sent, log_tau):  # type: ignore[no-untyped-def]
    total, last = 0.0, log_taus.shape[1] - 1
    for layer in range(elements.size):
        after = 0
        while after <= last and log_taus[layer, after] > log_tau:
            after += 1
        after = min(max(after, 1), last)
        high, low = log_taus[layer, after - 1], log_taus[layer, after]
        part = min(max((high - log_tau) / (high - low if high > low else 1.0), 0.0), 1.0)
        total += elements[layer] * (
            sent[layer, after - 1] + part * (sent[layer, after] - sent[layer, after - 1])
        )
    return total


@njit(nogil=True, cache=True)
def _common(elements, log_taus, sent, wanted, steps):  # type: ignore[no-untyped-def]
    low, high = log_taus.min(), log_taus.max()
    for _ in range(steps):
        middle = (low + high) / 2
        if _sent(elements, log_taus, sent, middle) > wanted:
            low = middle
        else:
            high = middle
    return high


def common_log_tau(
    elements: NDArray[np.float64],
    log_taus: NDArray[np.float64],
    sent: NDArray[np.float64],
    wanted: float,
    steps: int,
) -> float:
    """The logarithm of one tau by which all layers together send so many elements, by bisection.

    Args:
        elements: float64 [L].
        log_taus: float64 [L, C], descending; between two of them shares are on a straight line.
        sent: float64 [L, C], shares sent by these taus.
        wanted: elements to send.
        steps: halvings of the range of taus.
    """
    return float(_common(elements, log_taus, sent, wanted, steps))
