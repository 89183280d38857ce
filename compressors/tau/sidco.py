"""SIDCo: tau from a fit to a sample's distribution, in as many stages as the achieved density asks for."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..bucket.layout import Part
from ..config.thresholds import FittedTau
from .base import Memory
from .density import TargetDensity
from .fits import STAGE, fitted_tau

LOOKS = 5
"""Fits after which the number of stages is looked at again (the paper's Q)."""
TOLERANCE = 0.2
"""By how much the mean density may miss the target before that number changes (the paper's epsilon)."""


@dataclass(frozen=True)
class Fitted(TargetDensity):
    """A statistical fit, `fits.fitted_tau`, in stages."""

    config: FittedTau
    again: ClassVar[int] = 1
    """Where a fit is far off, the next one is, too."""

    def target(self, iteration: int, memory: Memory) -> float:
        """See `TargetDensity.target`."""
        return self.config.target

    def estimate(self, magnitudes: NDArray[np.float32], iteration: int, memory: Memory) -> float:
        """See `TargetDensity.estimate`."""
        stages = memory.setdefault("stages", 1.0) if self.config.stages == "auto" else self.config.stages
        return fitted_tau(self.config.fit, magnitudes, memory["target"], int(stages))

    def begin(self, part: Part, sent: int, memory: Memory) -> None:
        """See `TargetDensity.begin`: it judges the fit."""
        if self.config.stages != "auto":
            return
        memory["looks"] = memory.get("looks", 0.0) + 1
        memory["sum"] = memory.get("sum", 0.0) + sent / (self.config.target * max(part.elements, 1))
        if memory["looks"] >= LOOKS:
            self._adapt(memory.pop("sum") / memory.pop("looks"), memory)

    def _adapt(self, ratio: float, memory: Memory) -> None:
        """Adds or takes away a stage where the achieved density is off.

        Whether more stages raise tau depends on the tail: where a change made it worse, or there is no stage
        to add or take away, the next one goes the other way (as the authors' code does).
        """
        step, before = memory.get("step", 1.0), memory.get("ratio", ratio)
        if abs(ratio - 1) > abs(before - 1):
            step = -step
        memory["ratio"] = ratio
        if abs(ratio - 1) > TOLERANCE:
            stages = memory["stages"] + (step if ratio > 1 else -step)
            if 1 <= stages <= most_stages(self.config.target):
                memory["stages"] = stages
            else:
                step = -step
        memory["step"] = step


def most_stages(density: float) -> int:
    """How many stages a density takes, if all but the last let through a quarter."""
    return max(1, math.ceil(round(math.log(density) / math.log(STAGE), 6)))
