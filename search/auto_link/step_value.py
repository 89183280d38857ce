"""The worth of a step: how many steps of the uncompressed training it replaces."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAST_OF_A_PACE = 2
"""Evaluations that a line is laid through."""


@dataclass(frozen=True)
class Curve:
    """Losses of a training, on the same examples.

    Attributes:
        steps: done at each evaluation, ascending.
        losses: at each evaluation; NaN counts as nothing learned.
    """

    steps: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def last(self) -> int:
        """Steps at the last evaluation."""
        return self.steps[-1]


def falling(losses: Sequence[float]) -> NDArray[np.float64]:
    """Monotone smoothing of losses [evaluations]: never rising, float64.

    The mean of the least loss so far and the largest to come, after a median of three that removes outliers.
    """
    values = np.asarray(losses, dtype=np.float64)
    if len(values) > 2:
        inner = np.median(np.stack([values[:-2], values[1:-1], values[2:]]), axis=0)
        values = np.concatenate([values[:1], inner, values[-1:]])
    below = np.minimum.accumulate(values)
    above = np.maximum.accumulate(values[::-1])[::-1]
    return np.asarray((below + above) / 2)


def place_on(reference: Curve, loss: float) -> float:
    """After how many steps the reference had this loss: between its first evaluation and its last.

    Interpolates by monotone cubics: losses fall ever slower, so that a straight line between two evaluations
    lies above them, and makes steps that are worth little look up to 30% better.
    """
    from scipy.interpolate import PchipInterpolator  # noqa: PLC0415 - takes a third of a second

    if not math.isfinite(loss):
        return float(reference.steps[0])
    rises, first = np.unique(-falling(reference.losses), return_index=True)  # of a plateau, its first step
    steps = PchipInterpolator(rises, np.asarray(reference.steps)[first])
    return float(steps(np.clip(-loss, rises[0], rises[-1])))


def worth_of(curve: Curve, reference: Curve) -> float:
    """The worth of a step over the second half of a training.

    A regression through 0 of the reference's steps with the same losses on the training's steps. Losses below
    the reference's last one count as that: the worth is at most the reference's steps over the training's.
    """
    late = _places(curve, reference, 1 / 2)
    return sum(step * place for step, place in late) / sum(step * step for step, _ in late)


def pace_of(curve: Curve, reference: Curve) -> float:
    """The slope of the reference's steps over the training's, over the last two thirds.

    Less than the worth if the training falls behind; noisier, as it is a difference.
    """
    late = _places(curve, reference, 1 / 3)
    if len(late) < _LEAST_OF_A_PACE:
        return worth_of(curve, reference)
    steps, places = zip(*late, strict=True)
    return max(0.0, float(np.polyfit(steps, places, 1)[0]))


def expected_worth(worth: float, pace: float, steps: int, until: int) -> float:
    """The mean worth of a step up to the reference's step `until`, extrapolated linearly.

    Sums that must first reach a threshold, and rare exchanges, begin late: such a training is behind by a
    constant number of steps. A pace above 1 counts as 1, as nothing stays faster than the reference for long.

    Args:
        worth: of a step so far.
        pace: of a step in the end.
        steps: done so far.
        until: a later step of the reference.

    Returns:
        Between worth and pace; the worth if the pace is not higher.
    """
    pace = min(pace, 1.0)
    if pace <= worth:
        return worth
    delay = steps * (1 - worth / pace)
    return until / (delay + until / pace)


def _places(curve: Curve, reference: Curve, since: float) -> list[tuple[int, float]]:
    """Steps of evaluations after a part of the training, and the reference's steps with their losses."""
    return [
        (step, place_on(reference, loss))
        for step, loss in zip(curve.steps, curve.losses, strict=True)
        if step > 0 and step > since * curve.last
    ]


def learned(reference: Curve) -> bool:
    """Whether the reference's losses fell."""
    return all(map(math.isfinite, reference.losses)) and reference.losses[-1] < reference.losses[0]
