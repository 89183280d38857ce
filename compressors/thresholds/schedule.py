"""tau by iteration."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, field_validator

from ..fields import Tau
from ..ops.parts import Part
from .base import Policy, Sender
from .samples import as_tau


class ScheduledTau(Policy):
    """tau by iteration: given at some, kept or interpolated between them."""

    first_field = "points"
    by_itself = True

    kind: Literal["schedule"] = "schedule"
    points: dict[int, Tau] = Field(min_length=1)
    """tau at iterations, counted from 0, such as {0: 1e-4, 1000: 1e-3}. Before the first and after the last,
    tau is constant."""
    between: Literal["step", "linear", "exponential"] = "exponential"
    """From one point to the next: a step, or a straight line in tau or in its logarithm."""

    @field_validator("points")
    @classmethod
    def _from_zero_on(cls, points: dict[int, float]) -> dict[int, float]:
        if min(points) < 0:
            raise ValueError(f"iterations count from 0, {min(points)} is before that")
        return dict(sorted(points.items()))

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[Any], method: Sender
    ) -> list[float]:
        return [as_tau(self._at(iteration))] * len(parts)

    def _at(self, iteration: int) -> float:
        at, taus = list(self.points), list(self.points.values())
        after = bisect.bisect_right(at, iteration)
        if after == 0 or after == len(at) or self.between == "step":
            return taus[max(after - 1, 0)]
        done = (iteration - at[after - 1]) / (at[after] - at[after - 1])
        low, high = taus[after - 1], taus[after]
        if self.between == "linear":
            return low + done * (high - low)
        return float(low * (high / low) ** done)
