"""A tau that was given: one for the whole run, or by iteration."""

import bisect
from dataclasses import dataclass

import numpy as np

from ..config.thresholds import ScheduledTau
from ..parts import Part
from .base import Memory, ThresholdPolicy


@dataclass(frozen=True)
class Fixed(ThresholdPolicy):
    """The same tau always."""

    value: np.float32

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        return self.value


@dataclass(frozen=True)
class Scheduled(ThresholdPolicy):
    """tau by iteration, interpolated between points."""

    config: ScheduledTau

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        at, taus = list(self.config.points), list(self.config.points.values())
        after = bisect.bisect_right(at, iteration)
        if after == 0 or after == len(at) or self.config.between == "step":
            return np.float32(taus[max(after - 1, 0)])
        done = (iteration - at[after - 1]) / (at[after] - at[after - 1])
        low, high = taus[after - 1], taus[after]
        if self.config.between == "linear":
            return np.float32(low + done * (high - low))
        return np.float32(low * (high / low) ** done)
