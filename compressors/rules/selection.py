"""Sparse rules, which select elements by a threshold, by rank, or by rank in a chunk."""

from collections.abc import Sequence

from ..bucket.layout import Part
from ..method.base import SMALLEST_TAU
from ..method.sparse import ChunkedTopK, ThresholdedMethod, TopK
from ..ops.interface import Batch, Selected, Target
from ..ops.readback import Pending
from ..tau.base import ALL, PolicyMemory, policy_of
from ..tau.density import density_at
from ..tau.samples import reached_by
from ..wire.update import Chunks
from .base import BucketInput, Context, Memories
from .sparse import SparseRule


class ByThreshold(SparseRule):
    """Selects what reaches tau (wgt, bgt, qgt) or exceeds it (strom)."""

    def __init__(self, config: ThresholdedMethod) -> None:
        """See `Rule.__init__`."""
        self.sends = config.sends
        super().__init__(config)
        self.policy = policy_of(config.tau, config)

    def memory_of(self, name: str) -> type[PolicyMemory]:
        return self.policy.memory_of(name)

    def retarget(self, before: float, memories: Memories) -> None:
        self.policy.retarget(before, memories)

    def memories(self, parts: Sequence[Part], memories: Memories) -> list[PolicyMemory]:
        names = [ALL] * len(parts) if self.policy.together else [part.name for part in parts]
        for name in names:
            if name not in memories:
                memories[name] = self.policy.memory_of(name)()
        return [memories[name] for name in names]

    def aims(self, parts: Sequence[Part], context: Context, known: Sequence[PolicyMemory]) -> list[float]:
        self.policy.decide(known, context.iteration, context.memories)
        return self.policy.taus(parts, context.iteration, known)

    def need_samples(
        self, parts: Sequence[Part], iteration: int, known: Sequence[PolicyMemory]
    ) -> Sequence[bool]:
        return self.policy.need_samples(parts, iteration, known)

    def shares(self, parts: int, iteration: int, known: Sequence[PolicyMemory]) -> Sequence[float] | None:
        return self.policy.shares(iteration, known)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, known: Sequence[PolicyMemory]
    ) -> None:
        self.policy.note(parts, sent, iteration, known)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_by_threshold(self.sends, batch, target, aims)


class ByRank(SparseRule):
    """The largest magnitudes of each parameter, a share of its elements."""

    config: TopK
    sends = "wgt"

    def aims(self, parts: Sequence[Part], context: Context, known: Sequence[PolicyMemory]) -> list[float]:
        """The density; the pass finds the magnitude that belongs to it."""
        return self.shares(len(parts), context.iteration, known)

    def shares(self, parts: int, iteration: int, known: Sequence[PolicyMemory]) -> list[float]:
        return [density_at(self.config.density, self.config.warmup, iteration)] * parts

    def need_samples(
        self, parts: Sequence[Part], iteration: int, known: Sequence[PolicyMemory]
    ) -> list[bool]:
        return [self.config.sampled] * len(parts)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        if self.config.sampled:
            taus = [reached_by(part, aim) for part, aim in zip(parts, aims, strict=True)]
            return given.ops.take_by_threshold(self.sends, batch, target, taus)
        counts = [max(1, int(aim * size)) for aim, size in zip(aims, batch.sizes.tolist(), strict=True)]
        return given.ops.take_largest(batch, target, counts)


class ByChunk(SparseRule):
    """The largest magnitudes of every chunk, the same number from each."""

    config: ChunkedTopK
    sends = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        """See `Rule.__init__`."""
        super().__init__(config)
        self.chunks = Chunks(config.chunk, config.keep)

    def aims(self, parts: Sequence[Part], context: Context, known: Sequence[PolicyMemory]) -> list[float]:
        """None; any number does."""
        return [SMALLEST_TAU] * len(parts)

    def take(
        self, batch: Batch, target: Target, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_largest_of_chunks(batch, target, self.config.chunk, self.config.keep)
