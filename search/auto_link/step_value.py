"""How much a step of one way to train is worth, in steps of the uncompressed training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_LEAST_OF_A_PACE = 2
"""Evaluations that a line is laid through."""


@dataclass(frozen=True)
class Curve:
    """Losses of the same examples in the probe_run of a training.

    Attributes:
        steps: done at each evaluation, ascending.
        losses: one for each; what is no number counts as nothing learned.
    """

    steps: tuple[int, ...]
    losses: tuple[float, ...]

    @property
    def last(self) -> int:
        """Steps at the last evaluation."""
        return self.steps[-1]

    def upto(self, steps: int) -> "Curve":
        """Its beginning."""
        count = sum(step <= steps for step in self.steps)
        return Curve(self.steps[:count], self.losses[:count])


def falling(losses: Sequence[float]) -> NDArray[np.float64]:
    """Losses [evaluations] without their ups and downs: never rising, float64.

    The mean of the least so far, which lies below a noisy curve, and the largest to come, which lies above.
    A single loss that both its neighbours contradict does not count.
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
    """How many steps of the reference one step of a training does, over the second half of it.

    At each evaluation there it is the step at which the reference had that loss, over the training's own; the
    steps that it has done count as weights, and the noise of one evaluation counts less.

    Args:
        curve: of the training; evaluations at step 0 say nothing.
        reference: of the training without compression, from step 0 on; it should reach as far as the training
            may be ahead of it, for no loss below its last one is told from that.

    Returns:
        0 where nothing was learned; at most the reference's steps over the training's.
    """
    late = _places(curve, reference, 1 / 2)
    return sum(step * place for step, place in late) / sum(step * step for step, _ in late)


def pace_of(curve: Curve, reference: Curve) -> float:
    """The same of what a step adds, over the last two thirds: less than its worth where it loses ground.

    It is a difference, and so noisier. For arguments see `worth_of`.
    """
    late = _places(curve, reference, 1 / 3)
    if len(late) < _LEAST_OF_A_PACE:
        return worth_of(curve, reference)
    steps, places = zip(*late, strict=True)
    return max(0.0, float(np.polyfit(steps, places, 1)[0]))


def expected_worth(worth: float, pace: float, steps: int, until: int) -> float:
    """What a step will have been worth once the reference's step `until` is reached.

    Sums that must first reach a threshold, and rare exchanges, begin late: such a training lies behind by a
    number of steps that stays the same, and counts for less the longer it goes on. A straight line has its
    place after `steps` and its pace. Nothing goes on faster than the reference for long: a higher pace counts
    as 1.

    Args:
        worth: of a step so far.
        pace: of a step in the end.
        steps: done so far.
        until: a step of the reference, in the future of the training.

    Returns:
        Between worth and pace; the worth where the pace is not higher.
    """
    pace = min(pace, 1.0)
    if pace <= worth:
        return worth
    late = steps * (1 - worth / pace)
    return until / (late + until / pace)


def _places(curve: Curve, reference: Curve, since: float) -> list[tuple[int, float]]:
    """Each evaluation's step and its place on the reference, after that part of the training."""
    return [
        (step, place_on(reference, loss))
        for step, loss in zip(curve.steps, curve.losses, strict=True)
        if step > 0 and step > since * curve.last
    ]


def learned(reference: Curve) -> bool:
    """Whether the reference's losses fell."""
    return all(map(math.isfinite, reference.losses)) and reference.losses[-1] < reference.losses[0]
