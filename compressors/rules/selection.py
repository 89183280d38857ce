"""Which elements of a parameter a sparse rule takes out: by threshold, by rank, by chunk."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from ..bucket.layout import Part
from ..config.base import SMALLEST_TAU
from ..config.methods import ChunkedTopK, SparseMethod, TopK
from ..ops.interface import Ops
from ..ops.results import Batch, Taken, ThresholdRule
from ..ops.returns import Pending, Returns
from ..tau import ALL, Memory, ThresholdPolicy, build_policy, density_at, sampled_tau
from ..wire.update import Chunks


class Selection(ABC):
    """What passes go by, and the passes, for the parameters of a bucket together."""

    rule: ThresholdRule
    """What stands for an element."""
    has_tau: bool = True
    chunks: Chunks | None = None

    @abstractmethod
    def aims(self, parts: Sequence[Part], iteration: int, memories: dict[str, Memory]) -> list[float]:
        """What each part's pass goes by: a tau, or a density.

        Args:
            parts: of one unit; one that `needs_sample` may be a sample of its magnitudes.
            iteration: backward passes before this one.
            memories: by name, of all parameters; gains those of the parts.
        """

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """Whether a sample of the part decides its tau, in `aims` or in `take`."""
        return False

    @abstractmethod
    def take(
        self, batch: Batch, samples: Sequence[Part], aims: Sequence[float], ops: Ops, returns: Returns
    ) -> Pending[Taken]:
        """Starts the passes.

        Args:
            batch: some parameters.
            samples: they, or samples of their magnitudes; see `aims`.
            aims: what each one's pass goes by.
            ops: where they are.
            returns: receives what the passes come to.
        """

    def note(  # noqa: B027 (only policies learn)
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Mapping[str, Memory]
    ) -> None:
        """Takes note of what was sent of parts that were not held back."""


class ByThreshold(Selection):
    """What reaches tau (wgt, bgt, qgt) or exceeds it (strom)."""

    def __init__(self, rule: ThresholdRule, policy: ThresholdPolicy) -> None:
        self.rule = rule
        self.policy = policy

    def aims(self, parts: Sequence[Part], iteration: int, memories: dict[str, Memory]) -> list[float]:
        """See `Selection.aims`."""
        if self.policy.together:
            turn = [memories.setdefault(ALL, {})] * len(parts)
        else:
            turn = [memories.setdefault(part.name, {}) for part in parts]
        self.policy.settle(turn, iteration, memories)
        return self.policy.taus(parts, iteration, turn)

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `Selection.needs_sample`."""
        return self.policy.needs_sample(part, iteration, memory)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Mapping[str, Memory]
    ) -> None:
        """See `Selection.note`."""
        if self.policy.together:
            turn = [memories[ALL]] * len(parts)
        else:
            turn = [memories[part.name] for part in parts]
        self.policy.note(parts, sent, iteration, turn)

    def take(
        self, batch: Batch, samples: Sequence[Part], aims: Sequence[float], ops: Ops, returns: Returns
    ) -> Pending[Taken]:
        """See `Selection.take`."""
        return ops.take_by_threshold(self.rule, batch, aims, returns)


class ByRank(Selection):
    """The largest magnitudes of each parameter, a share of its elements."""

    rule = "wgt"

    def __init__(self, config: TopK) -> None:
        self.config = config

    def aims(self, parts: Sequence[Part], iteration: int, memories: dict[str, Memory]) -> list[float]:
        """The density; the pass finds the magnitude that belongs to it."""
        return [density_at(self.config.density, self.config.warmup, iteration)] * len(parts)

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `Selection.needs_sample`."""
        return self.config.sampled

    def take(
        self, batch: Batch, samples: Sequence[Part], aims: Sequence[float], ops: Ops, returns: Returns
    ) -> Pending[Taken]:
        """See `Selection.take`."""
        if self.config.sampled:
            taus = [float(sampled_tau(part, aim)) for part, aim in zip(samples, aims, strict=True)]
            return ops.take_by_threshold(self.rule, batch, taus, returns)
        sizes = [each.numel() for each in batch.gradients]
        counts = [max(1, int(aim * size)) for aim, size in zip(aims, sizes, strict=True)]
        return ops.take_largest(batch, counts, returns)


class ByChunk(Selection):
    """The largest magnitudes of every chunk, the same number from each."""

    rule = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        self.chunks = Chunks(config.chunk, config.keep)

    def aims(self, parts: Sequence[Part], iteration: int, memories: dict[str, Memory]) -> list[float]:
        """None; any number does."""
        return [SMALLEST_TAU] * len(parts)

    def take(
        self, batch: Batch, samples: Sequence[Part], aims: Sequence[float], ops: Ops, returns: Returns
    ) -> Pending[Taken]:
        """See `Selection.take`."""
        assert self.chunks is not None
        return ops.take_largest_of_chunks(batch, self.chunks.chunk, self.chunks.keep, returns)


def build_selection(config: SparseMethod) -> Selection:
    """The selection that a method's configuration describes."""
    if isinstance(config, TopK):
        return ByRank(config)
    if isinstance(config, ChunkedTopK):
        return ByChunk(config)
    return ByThreshold(config.kind, build_policy(config))
