"""The best value of a setting: of those within the tolerance, the one that sent the fewest bytes."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from .past import PastRun, Setting

WIDTH_TAU = math.log(1.5)
"""Runs whose taus differ by this factor are still averaged, because a single accuracy is half chance."""
WIDTH_FLOOR = 0.5
"""The same for floors, in bits."""


def scale_of(kind: str) -> tuple[Callable[[float], float], float]:
    """On what scale a method's values are compared, and how wide accuracies are averaged on it."""
    return ((lambda floor: floor), WIDTH_FLOOR) if kind == "entropy" else (math.log, WIDTH_TAU)


def best_value(setting: Setting, kind: str, tolerance: float) -> float | None:
    """The best value that a setting's runs show.

    Args:
        setting: what was run.
        kind: the method's.
        tolerance: percentage points of accuracy below the runs without compression, or where there are none,
            below the best of these.

    Returns:
        None where all runs lost more.
    """
    scale, width = scale_of(kind)
    smooth = smoothed([scale(run.value) for run in setting.runs], _accuracies(setting.runs), width)
    reference = fmean(each.value for each in setting.baselines) if setting.baselines else max(smooth)
    allowed = reference - tolerance / 100
    within = [run for run, accuracy in zip(setting.runs, smooth, strict=True) if accuracy >= allowed]
    return min(within, key=lambda run: run.outcome.wire_bytes).value if within else None


def smoothed(places: Sequence[float], values: Sequence[float], width: float) -> list[float]:
    """Each value's mean with those nearby, weighted by a normal density of that standard deviation."""
    at = np.asarray(places)
    weights = np.exp(-0.5 * ((at[:, None] - at) / width) ** 2)
    means: list[float] = (weights @ np.asarray(values) / weights.sum(1)).tolist()
    return means


def _accuracies(runs: Sequence[PastRun]) -> list[float]:
    return [run.outcome.value for run in runs]
