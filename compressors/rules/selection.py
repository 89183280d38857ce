"""Which elements of a parameter a sparse rule takes out: by threshold, by rank, by chunk."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..config.base import SMALLEST_TAU
from ..config.methods import ChunkedTopK, SparseMethod, TopK
from ..kernels import chunked, threshold, topk
from ..kernels.threshold import PassResult, ThresholdRule
from ..parts import Part
from ..policies import ALL, Memory, ThresholdPolicy, build_policy, density_at, sampled_tau
from ..update import Chunks


@dataclass(frozen=True)
class Target:
    """Where a pass writes: behind what other parameters of the unit have written."""

    words: NDArray[np.uint32]
    values: NDArray[Any]
    base: int
    """The parameter's first position."""
    sent: int
    """Words that are there already."""
    threads: int


class Taken(NamedTuple):
    """What a pass came to."""

    result: PassResult
    tau: np.float32
    """The threshold that was sent by."""


class Selection(ABC):
    """What a pass goes by, for the parameters of a unit together, and the pass over one of them."""

    rule: ThresholdRule
    """What stands for an element."""
    has_tau: bool = True
    chunks: Chunks | None = None

    @abstractmethod
    def aims(self, parts: Sequence[Part], iteration: int, memories: dict[str, Memory]) -> list[float]:
        """What each part's pass goes by: a tau, or a density.

        Args:
            parts: of one unit.
            iteration: backward passes before this one.
            memories: by name, of all parameters; gains those of the parts.
        """

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """Whether a sample of the part decides its tau, in `aims` or in `take`."""
        return False

    @abstractmethod
    def take(self, part: Part, gradient: Tensor, aim: float, target: Target) -> Taken:
        """Runs the pass; the gradient is float32."""

    def note(  # noqa: B027 (only policies learn)
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Mapping[str, Memory]
    ) -> None:
        """Takes note of what was sent of the parts of one unit that were not held back."""


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

    def take(self, part: Part, gradient: Tensor, aim: float, target: Target) -> Taken:
        """See `Selection.take`."""
        assert part.residual is not None
        tau = np.float32(aim)
        return Taken(_threshold_pass(self.rule, part.residual, gradient, tau, target), tau)


def _threshold_pass(
    rule: ThresholdRule, residual: Tensor, gradient: Tensor, tau: np.float32, target: Target
) -> PassResult:
    return threshold.threshold_pass(
        rule,
        residual.numpy(),
        gradient.numpy(),
        tau,
        target.words,
        target.values,
        base=target.base,
        sent=target.sent,
        threads=target.threads,
    )


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

    def count(self, elements: int, aim: float) -> int:
        """How many of a parameter's elements are sent."""
        return max(1, int(aim * elements))

    def take(self, part: Part, gradient: Tensor, aim: float, target: Target) -> Taken:
        """See `Selection.take`."""
        assert part.residual is not None
        if self.config.sampled:
            tau = sampled_tau(Part(part.name, gradient, part.residual), aim)
            return Taken(_threshold_pass("wgt", part.residual, gradient, tau, target), tau)
        found = topk.topk_pass(
            part.residual.numpy(),
            gradient.numpy(),
            self.count(part.elements, aim),
            target.words,
            target.values,
            base=target.base,
            sent=target.sent,
            threads=target.threads,
        )
        return Taken(PassResult(found.sent, found.residual_squares, found.nonfinite), found.tau)


class ByChunk(Selection):
    """The largest magnitudes of every chunk, the same number from each."""

    rule = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        self.chunks = Chunks(config.chunk, config.keep)

    def aims(self, parts: Sequence[Part], iteration: int, memories: dict[str, Memory]) -> list[float]:
        """None; any number does."""
        return [SMALLEST_TAU] * len(parts)

    def take(self, part: Part, gradient: Tensor, aim: float, target: Target) -> Taken:
        """See `Selection.take`."""
        assert part.residual is not None
        assert self.chunks is not None
        found = chunked.chunked_pass(
            part.residual.numpy(),
            gradient.numpy(),
            self.chunks.chunk,
            self.chunks.keep,
            target.words,
            target.values,
            base=target.base,
            sent=target.sent,
        )
        return Taken(found, np.float32(aim))


def build_selection(config: SparseMethod) -> Selection:
    """The selection that a method's configuration describes."""
    if isinstance(config, TopK):
        return ByRank(config)
    if isinstance(config, ChunkedTopK):
        return ByChunk(config)
    return ByThreshold(config.kind, build_policy(config))
