"""Which elements of a parameter a sparse rule takes out: by a threshold, by rank, or by rank in a chunk."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..bucket.layout import Part
from ..method.base import SMALLEST_TAU, ThresholdRule
from ..method.sparse import ChunkedTopK, SparseMethod, ThresholdedMethod, TopK
from ..ops.interface import Ops
from ..ops.readback import Pending, Readback
from ..ops.results import Batch, Selected
from ..tau.base import ALL, Memory, policy_of
from ..tau.density import density_at
from ..tau.sampling import sampled_tau
from ..wire.update import Chunks

Memories = dict[str, Memory]
"""Of all parameters, by name."""


class Selection(ABC):
    """Decides the threshold or density of each parameter in a bucket, and runs the passes."""

    rule: ThresholdRule
    """The name of the rule: how an element is sent."""
    has_tau: bool = True
    chunks: Chunks | None = None

    def __init__(self, config: SparseMethod) -> None:
        """By a method's fields."""
        self.config = config

    @abstractmethod
    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """Decides a tau, or a density, for the pass of each part.

        Args:
            parts: of one bucket; a part that `needs_sample` may be a sample of its magnitudes.
            iteration: backward passes before this one.
            memories: receives those of the parts.
        """

    def needs_sample(self, part: Part, iteration: int, memories: Memories) -> bool:
        """Whether a sample of the part decides its tau, in `aims` or in `take`."""
        return False

    @abstractmethod
    def take(
        self,
        batch: Batch,
        samples: Sequence[Part],
        aims: Sequence[float],
        ops: Ops,
        readback: Readback,
    ) -> Pending[Selected]:
        """Starts the passes.

        Args:
            batch: some parameters.
            samples: the parameters, or samples of their magnitudes; see `aims`.
            aims: the tau or density of each one's pass.
            ops: of their device.
            readback: receives the results of the passes.
        """

    def memory_of(self, name: str) -> type[Memory]:
        """What is remembered of the parameter of that name, or of all together (`tau.base.ALL`)."""
        return Memory

    def turn(self, before: float, memories: Memories) -> None:  # noqa: B027 (only policies learn)
        """Takes over what was remembered when another share was aimed at (`ThresholdPolicy.turn`)."""

    def note(  # noqa: B027
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Memories
    ) -> None:
        """Records what was sent of parts that were not held back."""


class ByThreshold(Selection):
    """Selects what reaches tau (wgt, bgt, qgt) or exceeds it (strom)."""

    def __init__(self, config: ThresholdedMethod) -> None:
        """See `Selection.__init__`."""
        super().__init__(config)
        self.rule = config.sends
        self.policy = policy_of(config.tau, config)

    def memory_of(self, name: str) -> type[Memory]:
        """See `Selection.memory_of`."""
        return self.policy.memory_of(name)

    def turn(self, before: float, memories: Memories) -> None:
        """See `Selection.turn`."""
        self.policy.turn(before, memories)

    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """See `Selection.aims`."""
        own = self._memories(parts, memories)
        self.policy.settle(own, iteration, memories)
        return self.policy.taus(parts, iteration, own)

    def needs_sample(self, part: Part, iteration: int, memories: Memories) -> bool:
        """See `Selection.needs_sample`."""
        return self.policy.needs_sample(part, iteration, self._memories((part,), memories)[0])

    def note(self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Memories) -> None:
        """See `Selection.note`."""
        self.policy.note(parts, sent, iteration, self._memories(parts, memories))

    def take(
        self,
        batch: Batch,
        samples: Sequence[Part],
        aims: Sequence[float],
        ops: Ops,
        readback: Readback,
    ) -> Pending[Selected]:
        """See `Selection.take`."""
        return ops.take_by_threshold(self.rule, batch, aims, readback)

    def _memories(self, parts: Sequence[Part], memories: Memories) -> list[Memory]:
        """Those of some parts, made where there are none."""
        names = [ALL] * len(parts) if self.policy.together else [part.name for part in parts]
        try:
            return [memories[name] for name in names]
        except KeyError:
            for name in names:
                if name not in memories:
                    memories[name] = self.policy.memory_of(name)()
            return [memories[name] for name in names]


class ByRank(Selection):
    """The largest magnitudes of each parameter, a share of its elements."""

    config: TopK
    rule = "wgt"

    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """The density; the pass finds the magnitude that belongs to it."""
        return [density_at(self.config.density, self.config.warmup, iteration)] * len(parts)

    def needs_sample(self, part: Part, iteration: int, memories: Memories) -> bool:
        """See `Selection.needs_sample`."""
        return self.config.sampled

    def take(
        self,
        batch: Batch,
        samples: Sequence[Part],
        aims: Sequence[float],
        ops: Ops,
        readback: Readback,
    ) -> Pending[Selected]:
        """See `Selection.take`."""
        if self.config.sampled:
            taus = [float(sampled_tau(part, aim)) for part, aim in zip(samples, aims, strict=True)]
            return ops.take_by_threshold(self.rule, batch, taus, readback)
        sizes = [each.numel() for each in batch.gradients]
        counts = [max(1, int(aim * size)) for aim, size in zip(aims, sizes, strict=True)]
        return ops.take_largest(batch, counts, readback)


class ByChunk(Selection):
    """The largest magnitudes of every chunk, the same number from each."""

    rule = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        """See `Selection.__init__`."""
        super().__init__(config)
        self.chunks = Chunks(config.chunk, config.keep)

    def aims(self, parts: Sequence[Part], iteration: int, memories: Memories) -> list[float]:
        """None; any number does."""
        return [SMALLEST_TAU] * len(parts)

    def take(
        self,
        batch: Batch,
        samples: Sequence[Part],
        aims: Sequence[float],
        ops: Ops,
        readback: Readback,
    ) -> Pending[Selected]:
        """See `Selection.take`."""
        assert self.chunks is not None
        return ops.take_largest_of_chunks(batch, self.chunks.chunk, self.chunks.keep, readback)
