"""What a layer would send and keep with each of several thresholds, in one walk over sorted magnitudes."""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...method.base import LARGEST_TAU, SMALLEST_TAU, ThresholdRule

_MOST = 255
"""Taus that a level of qgt stands for, at most."""
_QUANTA = {"wgt": 0, "bgt": 1, "strom": 1, "qgt": 2}
"""What is sent of an element: all of it, one tau, or several."""


@njit(nogil=True, cache=True)
def _walk(ascending, shares, quantum, curve):  # type: ignore[no-untyped-def]
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
        tau = min(max(np.float64(ascending[m - rank]), SMALLEST_TAU), LARGEST_TAU)
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
    ascending: NDArray[np.float32], shares: NDArray[np.float64], rule: ThresholdRule
) -> NDArray[np.float64]:
    """A curve's points.

    Args:
        ascending: contiguous float32 [m], finite magnitudes; m at least 1.
        shares: float64 [C], ascending, greater than 0, at most 1.
        rule: what stands for an element that is sent.

    Returns:
        float64 [3, C]: shares of the m that are sent; the smallest magnitudes sent, as taus; sums of squares
        of what is not sent, over m.
    """
    curve = np.empty((3, shares.size))
    _walk(ascending, shares, _QUANTA[rule], curve)
    return curve
