"""A tau that was given: one for the whole run, or by iteration."""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..bucket.layout import Part
from ..config.thresholds import ScheduledTau
from .base import Memory, ThresholdPolicy


@dataclass(frozen=True)
class Fixed(ThresholdPolicy):
    """The same tau always."""

    value: np.float32

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        return [float(self.value)] * len(parts)


@dataclass(frozen=True)
class Scheduled(ThresholdPolicy):
    """tau by iteration, interpolated between points."""

    config: ScheduledTau

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        return [float(np.float32(self._at(iteration)))] * len(parts)

    def _at(self, iteration: int) -> float:
        at, taus = list(self.config.points), list(self.config.points.values())
        after = bisect.bisect_right(at, iteration)
        if after == 0 or after == len(at) or self.config.between == "step":
            return taus[max(after - 1, 0)]
        done = (iteration - at[after - 1]) / (at[after] - at[after - 1])
        low, high = taus[after - 1], taus[after]
        if self.config.between == "linear":
            return low + done * (high - low)
        return float(low * (high / low) ** done)
