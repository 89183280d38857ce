"""mean: tau is a multiple of the mean magnitude, which is followed from iteration to iteration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method.policies import Policy
from taugrad.compressors.tau.base import Memory, ThresholdPolicy, as_tau, magnitudes_of


class MeanTau(Policy):
    """A multiple of a sample's mean magnitude; the mean moves slowly."""

    first_field = "factor"
    by_itself = True
    decides = "taugrad_extension.mean:Mean"

    kind: Literal["mean"] = "mean"
    factor: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    """tau over the mean magnitude of residual + gradient."""
    keep: float = Field(default=0.9, ge=0, lt=1)
    """How much of the mean stays from one iteration to the next."""


@dataclass(slots=True)
class MeanMemory(Memory):
    """Of one parameter."""

    mean: float | None = None


class Mean(ThresholdPolicy[MeanMemory]):
    """See `MeanTau`."""

    memory = MeanMemory
    config: MeanTau

    def needs_sample(self, part: Part, iteration: int, memory: MeanMemory) -> bool:
        """See `ThresholdPolicy.needs_sample`: in every iteration."""
        return True

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[MeanMemory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        return [self._tau(part, memory) for part, memory in zip(parts, memories, strict=True)]

    def _tau(self, part: Part, memory: MeanMemory) -> float:
        magnitudes = magnitudes_of(part)
        now = float(magnitudes.mean(dtype=np.float64)) if magnitudes.size else 0.0
        keep = 0.0 if memory.mean is None else self.config.keep
        memory.mean = keep * (memory.mean or 0.0) + (1 - keep) * now
        return as_tau(self.config.factor * memory.mean)
