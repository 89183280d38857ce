"""SIDCo: tau from a fit to a sample's distribution, in as many stages as the achieved density asks for."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..bucket.layout import Part
from ..method.policies import FittedTau
from .density import DensityMemory, TargetDensity
from .fits import fitted_tau

STAGE = 0.25
"""The share that every stage but the last lets through."""


LOOKS = 5
"""Fits after which the number of stages is looked at again (the paper's Q)."""


TOLERANCE = 0.2
"""By how much the mean density may miss the target before that number changes (the paper's epsilon)."""


@dataclass(slots=True)
class FittedMemory(DensityMemory):
    """Of one parameter; the rest is for `stages: auto`."""

    stages: int = 1
    looks: int = 0
    """Fits since the number of stages was looked at."""
    ratios: float = 0.0
    """The sum of what they led to, in multiples of the target."""
    step: int = 1
    """Where more stages are wanted: 1 adds one, -1 takes one away."""
    ratio: float | None = None
    """The mean of those before the last look."""


class Fitted(TargetDensity[FittedMemory]):
    """A statistical fit, `fits.fitted_tau`, in stages."""

    memory = FittedMemory
    config: FittedTau
    again = 1
    """Where a fit is far off, the next one is, too."""

    def target(self, iteration: int, memory: FittedMemory) -> float:
        """See `TargetDensity.target`."""
        return self.config.target

    def estimate(self, magnitudes: NDArray[np.float32], iteration: int, memory: FittedMemory) -> float:
        """See `TargetDensity.estimate`."""
        stages = memory.stages if self.config.stages == "auto" else self.config.stages
        return fitted_tau(self.config.fit, magnitudes, memory.target, stages, STAGE)

    def begin(self, part: Part, sent: int, memory: FittedMemory) -> None:
        """See `TargetDensity.begin`: it judges the fit."""
        if self.config.stages != "auto":
            return
        memory.looks += 1
        memory.ratios += sent / (self.config.target * max(part.elements, 1))
        if memory.looks >= LOOKS:
            ratio = memory.ratios / memory.looks
            memory.looks, memory.ratios = 0, 0.0
            self._adapt(ratio, memory)

    def _adapt(self, ratio: float, memory: FittedMemory) -> None:
        """Adds or takes away a stage where the achieved density is off.

        Whether more stages raise tau depends on the tail: where a change made it worse, or there is no stage
        to add or take away, the next one goes the other way (as the authors' code does).
        """
        before = ratio if memory.ratio is None else memory.ratio
        if abs(ratio - 1) > abs(before - 1):
            memory.step = -memory.step
        memory.ratio = ratio
        if abs(ratio - 1) > TOLERANCE:
            stages = memory.stages + (memory.step if ratio > 1 else -memory.step)
            if 1 <= stages <= most_stages(self.config.target):
                memory.stages = stages
            else:
                memory.step = -memory.step


def most_stages(density: float) -> int:
    """How many stages a density takes, if all but the last let through a quarter."""
    return max(1, math.ceil(round(math.log(density) / math.log(STAGE), 6)))
