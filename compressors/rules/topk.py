"""topk: the largest magnitudes of every parameter, a fixed share of them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from ..method.base import Share
from ..method.sparse import Clip, WholeValues
from ..tau.warmup import Warmup, check_falling, density_at
from .selection import Memories, Selection

if TYPE_CHECKING:
    from ..bucket.layout import Part
    from ..ops.interface import Ops
    from ..ops.readback import Pending, Readback
    from ..ops.results import Batch, Selected


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
    def _falling(self) -> "TopK":
        check_falling(self.density, self.warmup)
        return self

    @property
    def clipping(self) -> Clip | None:
        """See `SparseMethod.clipping`."""
        return self.clip

    @property
    def aim(self) -> float | None:
        """See `Method.aim`."""
        return self.density if self.warmup is None else None

    def aimed_at(self, share: float) -> Self:
        """See `Method.aimed_at`."""
        return super().aimed_at(share) if self.aim is None else self.model_copy(update={"density": share})

    def selection(self) -> "ByRank":
        """See `SparseMethod.selection`."""
        return ByRank(self)


class ByRank(Selection):
    """The largest magnitudes of each parameter, a share of its elements."""

    rule = "wgt"

    def __init__(self, config: TopK) -> None:
        self.config = config

    def aims(self, parts: Sequence["Part"], iteration: int, memories: Memories) -> list[float]:
        """The density; the pass finds the magnitude that belongs to it."""
        return [density_at(self.config.density, self.config.warmup, iteration)] * len(parts)

    def needs_sample(self, part: "Part", iteration: int, memories: Memories) -> bool:
        """See `Selection.needs_sample`."""
        return self.config.sampled

    def take(
        self,
        batch: "Batch",
        samples: Sequence["Part"],
        aims: Sequence[float],
        ops: "Ops",
        readback: "Readback",
    ) -> "Pending[Selected]":
        """See `Selection.take`."""
        from ..tau.sampling import sampled_tau  # noqa: PLC0415 (torch)

        if self.config.sampled:
            taus = [float(sampled_tau(part, aim)) for part, aim in zip(samples, aims, strict=True)]
            return ops.take_by_threshold(self.rule, batch, taus, readback)
        sizes = [each.numel() for each in batch.gradients]
        counts = [max(1, int(aim * size)) for aim, size in zip(aims, sizes, strict=True)]
        return ops.take_largest(batch, counts, readback)
