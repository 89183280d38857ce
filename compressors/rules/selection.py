"""Which elements of a parameter a sparse rule takes out: by a threshold, by rank, or by rank in a chunk."""

from collections.abc import Sequence

from ..bucket.layout import Part
from ..method.base import SMALLEST_TAU
from ..method.sparse import ChunkedTopK, ThresholdedMethod, TopK
from ..ops.cpu.topk import magnitude_at
from ..ops.interface import Batch, Selected
from ..ops.readback import Pending
from ..tau.base import ALL, Memory, as_tau, magnitudes_of, policy_of
from ..tau.density import density_at
from ..wire.update import Chunks
from .base import BucketInput, Memories
from .sparse import SparseRule


class ByThreshold(SparseRule):
    """Selects what reaches tau (wgt, bgt, qgt) or exceeds it (strom)."""

    def __init__(self, config: ThresholdedMethod) -> None:
        """See `Rule.__init__`."""
        self.sends = config.sends
        super().__init__(config)
        self.policy = policy_of(config.tau, config)

    def memory_of(self, name: str) -> type[Memory]:
        return self.policy.memory_of(name)

    def turn(self, before: float, memories: Memories) -> None:
        self.policy.turn(before, memories)

    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        own = self._memories(parts, memories)
        self.policy.settle(own, iteration, memories)
        return self.policy.taus(parts, iteration, own)

    def needs_sample(self, part: Part, iteration: int, memories: Memories) -> bool:
        return self.policy.needs_sample(part, iteration, self._memories((part,), memories)[0])

    def note(self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Memories) -> None:
        self.policy.note(parts, sent, iteration, self._memories(parts, memories))

    def take(
        self, batch: Batch, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_by_threshold(self.sends, batch, aims, given.readback)

    def _memories(self, parts: Sequence[Part], memories: Memories) -> list[Memory]:
        """Those of some parts, made where there are none."""
        names = [ALL] * len(parts) if self.policy.together else [part.name for part in parts]
        for name in names:
            if name not in memories:
                memories[name] = self.policy.memory_of(name)()
        return [memories[name] for name in names]


class ByRank(SparseRule):
    """The largest magnitudes of each parameter, a share of its elements."""

    config: TopK
    sends = "wgt"

    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """The density; the pass finds the magnitude that belongs to it."""
        return [density_at(self.config.density, self.config.warmup, iteration)] * len(parts)

    def needs_sample(self, part: Part, iteration: int, memories: Memories) -> bool:
        return self.config.sampled

    def take(
        self, batch: Batch, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        if self.config.sampled:
            pairs = zip(map(magnitudes_of, parts), aims, strict=True)
            taus = [as_tau(float(magnitude_at(magnitudes, aim))) for magnitudes, aim in pairs]
            return given.ops.take_by_threshold(self.sends, batch, taus, given.readback)
        sizes = [each.numel() for each in batch.gradients]
        counts = [max(1, int(aim * size)) for aim, size in zip(aims, sizes, strict=True)]
        return given.ops.take_largest(batch, counts, given.readback)


class ByChunk(SparseRule):
    """The largest magnitudes of every chunk, the same number from each."""

    config: ChunkedTopK
    sends = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        """See `Rule.__init__`."""
        super().__init__(config)
        self.chunks = Chunks(config.chunk, config.keep)

    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """None; any number does."""
        return [SMALLEST_TAU] * len(parts)

    def take(
        self, batch: Batch, parts: Sequence[Part], aims: Sequence[float], given: BucketInput
    ) -> Pending[Selected]:
        return given.ops.take_largest_of_chunks(batch, self.config.chunk, self.config.keep, given.readback)
