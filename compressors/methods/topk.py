"""topk: the largest magnitudes of every parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import model_validator

from ..fields import Share
from ..lazy import np
from ..ops.interface import Batch, Pending, Selected, Target
from ..ops.parts import Part
from ..thresholds.base import Policy, PolicyMemory, Sender
from ..thresholds.density import Warmup, check_falling
from ..thresholds.samples import reached_by
from .base import BucketInput
from .sparse import Clip, WholeValues


class TopK(WholeValues):
    """The largest magnitudes of every parameter, a fixed share of them, whole or quantized."""

    first_field = "density"

    kind: Literal["topk"] = "topk"
    density: Share
    """The share of a parameter's elements to send, at least one element."""
    sampled: bool = False
    """Estimate the magnitude from a sample, which sends about the density asked for, instead of the exact
    one."""
    warmup: Warmup | None = None
    """Start with a higher density."""
    clip: Clip | None = None
    """Clips the residual every few iterations; tau is the smallest magnitude sent."""

    @model_validator(mode="after")
    def _falling(self) -> TopK:
        check_falling(self.density, self.warmup)
        return self

    @property
    def policy(self) -> Policy:
        return _Ranks.model_construct(density=self.density, sampled=self.sampled, warmup=self.warmup)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], taus: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        if self.sampled:
            reached = [reached_by(part, share) for part, share in zip(parts, taus, strict=True)]
            return given.ops.take_by_threshold(self.sends, batch, target, reached)
        counts = np.maximum((np.array(taus, np.float64) * batch.sizes).astype(np.int64), 1)
        return given.ops.take_largest(batch, target, counts.tolist())


class _Ranks(Policy):
    """In place of tau, the share of a parameter's elements to send."""

    decides_taus = False

    kind: Literal["ranks"] = "ranks"
    density: float
    sampled: bool
    warmup: Warmup | None

    def need_samples(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[PolicyMemory]
    ) -> list[bool]:
        return [self.sampled] * len(parts)

    def shares(self, iteration: int, memories: Sequence[PolicyMemory]) -> list[float]:
        share = self.density if self.warmup is None else self.warmup.density(self.density, iteration)
        return [share] * len(memories)

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[PolicyMemory], method: Sender
    ) -> list[float]:
        return self.shares(iteration, memories)
