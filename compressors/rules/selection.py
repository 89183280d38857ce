"""Which elements of a parameter a sparse rule takes out: by threshold, by rank, by chunk."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..bucket.layout import Part
from ..config.base import SMALLEST_TAU
from ..config.methods import ChunkedTopK, SparseMethod, TopK
from ..ops.cpu import chunked, topk
from ..ops.cpu.rows import table
from ..ops.cpu.threshold import PassResult, RowsResult, ThresholdRule, threshold_rows
from ..tau import ALL, Memory, ThresholdPolicy, build_policy, density_at, sampled_tau
from ..wire.update import Chunks


@dataclass(frozen=True)
class Target:
    """Where passes write: what one parameter sends stands behind what the one before has sent."""

    words: NDArray[np.uint32]
    values: NDArray[Any]
    threads: int


class Taken(NamedTuple):
    """What the passes over some parameters came to."""

    result: RowsResult
    taus: list[float]
    """The thresholds that were sent by, each a float32's value."""


class Selection(ABC):
    """What passes go by, and the passes, for the parameters of a unit together."""

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
    def take(
        self, parts: Sequence[Part], aims: Sequence[float], bases: Sequence[int], target: Target
    ) -> Taken:
        """Runs the passes.

        Args:
            parts: with a residual each; gradients are float32.
            aims: what each one's pass goes by.
            bases: each one's first position in the update.
            target: where what is sent is written to.
        """

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

    def take(
        self, parts: Sequence[Part], aims: Sequence[float], bases: Sequence[int], target: Target
    ) -> Taken:
        """See `Selection.take`."""
        taus = np.array(aims, np.float32)
        return Taken(_threshold_passes(self.rule, parts, taus, bases, target), taus.tolist())


def _threshold_passes(
    rule: ThresholdRule,
    parts: Sequence[Part],
    taus: NDArray[np.float32],
    bases: Sequence[int],
    target: Target,
) -> RowsResult:
    rows = table(
        [residual_of(part).data_ptr() for part in parts],
        [part.gradient.data_ptr() for part in parts],
        [part.elements for part in parts],
        bases,
    )
    return threshold_rows(rule, rows, taus, target.words, target.values, threads=target.threads)


def residual_of(part: Part) -> Tensor:
    """The residual of a part that has one."""
    assert part.residual is not None
    return part.residual


class _OneByOne(Selection):
    """A selection whose passes have a parameter each."""

    def take(
        self, parts: Sequence[Part], aims: Sequence[float], bases: Sequence[int], target: Target
    ) -> Taken:
        """See `Selection.take`."""
        result, taus, sent = RowsResult([], [], []), [], 0
        for part, aim, base in zip(parts, aims, bases, strict=True):
            found, tau = self._pass(part, aim, base, sent, target)
            sent = found.sent
            result.ends.append(sent)
            result.residual_squares.append(found.residual_squares)
            result.nonfinite.append(found.nonfinite)
            taus.append(float(tau))
        return Taken(result, taus)

    @abstractmethod
    def _pass(
        self, part: Part, aim: float, base: int, sent: int, target: Target
    ) -> tuple[PassResult, np.float32]:
        """Runs a pass behind `sent` words; what it came to, and the threshold that was sent by."""


class ByRank(_OneByOne):
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

    def take(
        self, parts: Sequence[Part], aims: Sequence[float], bases: Sequence[int], target: Target
    ) -> Taken:
        """See `Selection.take`."""
        if not self.config.sampled:
            return super().take(parts, aims, bases, target)
        sampled = [sampled_tau(part, aim) for part, aim in zip(parts, aims, strict=True)]
        taus = np.array(sampled, np.float32)
        return Taken(_threshold_passes(self.rule, parts, taus, bases, target), taus.tolist())

    def _pass(
        self, part: Part, aim: float, base: int, sent: int, target: Target
    ) -> tuple[PassResult, np.float32]:
        found = topk.topk_pass(
            residual_of(part).numpy(),
            part.gradient.numpy(),
            self.count(part.elements, aim),
            target.words,
            target.values,
            base=base,
            sent=sent,
            threads=target.threads,
        )
        return PassResult(found.sent, found.residual_squares, found.nonfinite), found.tau


class ByChunk(_OneByOne):
    """The largest magnitudes of every chunk, the same number from each."""

    rule = "wgt"
    has_tau = False

    def __init__(self, config: ChunkedTopK) -> None:
        self.chunks = Chunks(config.chunk, config.keep)

    def aims(self, parts: Sequence[Part], iteration: int, memories: dict[str, Memory]) -> list[float]:
        """None; any number does."""
        return [SMALLEST_TAU] * len(parts)

    def _pass(
        self, part: Part, aim: float, base: int, sent: int, target: Target
    ) -> tuple[PassResult, np.float32]:
        assert self.chunks is not None
        found = chunked.chunked_pass(
            residual_of(part).numpy(),
            part.gradient.numpy(),
            self.chunks.chunk,
            self.chunks.keep,
            target.words,
            target.values,
            base=base,
            sent=sent,
        )
        return found, np.float32(aim)


def build_selection(config: SparseMethod) -> Selection:
    """The selection that a method's configuration describes."""
    if isinstance(config, TopK):
        return ByRank(config)
    if isinstance(config, ChunkedTopK):
        return ByChunk(config)
    return ByThreshold(config.kind, build_policy(config))
