"""Fewer points where a line is drawn; what is stored stays whole."""

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .runs import History

MOST_POINTS = 2000
"""More than a figure has pixels across."""


def thinned(history: History, most: int = MOST_POINTS) -> History:
    """A history of at most so many points that looks the same when it is drawn.

    The steps are cut into equal runs; of each the smallest and the largest value stay, at their own steps, so
    that no spike is lost. The first and the last point always stay.

    Args:
        history: Steps, ascending, and values.
        most: Points to keep, at least 4.

    Returns:
        The same history when it is short enough.

    Raises:
        ValueError: `most` is below 4.
    """
    if most < 4:
        raise ValueError(f"most is {most}, not at least 4")
    steps, values = history
    count = len(values)
    if count <= most:
        return history
    edges = np.linspace(0, count, (most - 2) // 2 + 1).astype(np.int64)
    filled = np.where(np.isnan(values), -np.inf, values)
    keep = {0, count - 1}
    for begin, end in pairwise(edges.tolist()):
        keep.add(begin + int(np.argmax(filled[begin:end])))
        keep.add(begin + int(np.argmin(values[begin:end])))
    kept = np.array(sorted(keep))
    return steps[kept], values[kept]


def bucket_medians(history: History, most: int) -> History:
    """A history as medians of equal runs of steps: the course of a noisy line.

    Args:
        history: Steps, ascending, and values.
        most: Points to keep, at least 1.

    Returns:
        The middle step of each run and its median, without NaN; the same history when it is short enough.
    """
    steps, values = history
    if len(values) <= most:
        return history
    edges = np.linspace(0, len(values), most + 1).astype(np.int64)
    medians: NDArray[np.float64] = np.array([_median(values[a:b]) for a, b in pairwise(edges)])
    return steps[(edges[:-1] + edges[1:] - 1) // 2], medians


def _median(values: NDArray[np.float64]) -> float:
    there = values[~np.isnan(values)]
    return float(np.median(there)) if there.size else math.nan
