"""A target density: tau comes from a sample every few iterations, and in between from what was sent."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from ..bucket.layout import Part
from ..method.base import SMALLEST_TAU
from ..method.policies import AllocatedTau, DensityTau, FittedTau, Warmup
from .base import PolicyMemory, ThresholdPolicy, as_tau, reached_by

BAND = 0.1
"""Relative tolerance of the number of elements sent, in which tau stays."""
CHANCE = 2
"""Added tolerance: this times the square root of the expected number, plus 1. In layers that send few, chance
alone would otherwise move tau in most iterations."""
LOOK = 2
"""Iterations between two comparisons with the band, counted from the last sample: a correction costs time,
and shows only in the next iteration. The alarm is compared in every iteration."""
OFF = 4
"""Factor of too many or too few elements that causes a new sample at once."""
ASKS = 0.0
"""In place of tau: the next iteration takes a new sample."""
STEADY = 8
"""Smoothing count for small layers: as many expected elements are added to those that were sent."""


@dataclass(slots=True)
class DensityMemory(PolicyMemory):
    """Of one parameter; its band is empty at first."""

    tau: float = ASKS
    target: float = 0.0
    """The share of its elements to send."""
    again: float | None = None
    """Extra samples that are still allowed."""
    least: float = 1.0
    """Lower end of the band: the fewest elements sent at which tau stays."""
    most: float = 0.0
    """Upper end of the band."""
    alarm: float = 0.0
    """More elements than this change tau in any iteration."""

    def forget_band(self) -> None:
        """Empties the band."""
        self.least, self.most, self.alarm = 1.0, 0.0, 0.0


D = TypeVar("D", bound=DensityMemory)


class TargetDensity(ThresholdPolicy[D], Generic[D]):
    """Finds tau in a sample every few iterations, and corrects it in between by what was sent.

    A run begins with samples in its iterations 0, 1, 2, 4, 8, ...: residuals grow from zero, and some runs,
    such as those that exchange weights every few steps, have few iterations.

    A sample costs time, and counts of what was sent cost next to none: while they stay in a band, nothing
    changes. The correction follows a layer whose scale drifts. A layer whose scale jumps is sampled in the
    next iteration, unless that did not help before.
    """

    config: DensityTau | AllocatedTau | FittedTau
    again: ClassVar[int] = 8
    """The largest number of extra samples until the next one is due: if residuals lie just below an old tau,
    a sample may cause another."""

    @abstractmethod
    def target(self, iteration: int, memory: D) -> float:
        """The share of a parameter's elements to send."""

    @abstractmethod
    def estimate(self, part: Part, iteration: int, memory: D) -> float:
        """The tau that memory.target of all elements reach, by a sample of the part."""

    def begin(self, part: Part, sent: int, memory: D) -> None:
        """Records what a sample's tau first led to."""

    def due(self, iteration: int) -> bool:
        """Whether every parameter is sampled in this iteration."""
        since = iteration % self.config.every
        return not since or (since == iteration and not since & (since - 1))

    def needs_sample(self, part: Part, iteration: int, memory: D) -> bool:
        return memory.tau == ASKS or self.due(iteration)

    def need_samples(self, parts: Sequence[Part], iteration: int, memories: Sequence[D]) -> list[bool]:
        due = self.due(iteration)
        return [due or memory.tau == ASKS for memory in memories]

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[D]) -> list[float]:
        """See `ThresholdPolicy.taus`; in most iterations they stand in the memories."""
        for number, wanted in enumerate(self.need_samples(parts, iteration, memories)):
            if wanted:
                self._sample(parts[number], iteration, memories[number])
        return [memory.tau for memory in memories]

    def _sample(self, part: Part, iteration: int, memory: D) -> None:
        if self.due(iteration):
            memory.again = self.again
        else:
            memory.again = self.again if memory.again is None else memory.again - 1
        memory.target = self.target(iteration, memory)
        memory.tau = self.estimate(part, iteration, memory)
        memory.forget_band()

    def note(self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[D]) -> None:
        looks = iteration % self.config.every % LOOK == 0
        for part, count, memory in zip(parts, sent, memories, strict=True):
            if not memory.least <= count <= memory.most if looks else count > memory.alarm:
                self._follow(part, count, memory)

    def retarget(self, before: float, memories: Mapping[str, D]) -> None:
        """See `ThresholdPolicy.retarget`: the next iteration finds every tau in a new sample."""
        for memory in memories.values():
            memory.tau, memory.again = ASKS, None
            memory.forget_band()

    def _follow(self, part: Part, sent: int, memory: D) -> None:
        """Corrects tau if what was sent is outside the band, or requests a new sample."""
        fresh = memory.most < memory.least
        if fresh:
            self.begin(part, sent, memory)
            aim_at(memory.target, part.elements, memory)
        least, most, tau = memory.least, memory.most, memory.tau
        if least <= sent <= most or self.config.every == 1:
            return
        ratio = (sent + STEADY) / ((least + most) / 2 + STEADY)
        # What a new sample's tau is off by, the next one's would be, too.
        jumped = not fresh and not 1 / OFF < ratio < OFF
        # A sample of zeros alone says nothing about the next gradients.
        if jumped and ((memory.again or 0) > 0 or (ratio > 1 and tau <= SMALLEST_TAU)):
            memory.tau = ASKS
        else:
            memory.tau = as_tau(tau * correction(ratio, memory.target))


class Density(TargetDensity[DensityMemory]):
    """The magnitude that a target share of a sample of the parameter's elements reaches."""

    memory = DensityMemory
    config: DensityTau

    def target(self, iteration: int, memory: DensityMemory) -> float:
        return density_at(self.config.target, self.config.warmup, iteration)

    def shares(self, iteration: int, memories: Sequence[DensityMemory]) -> list[float]:
        return [density_at(self.config.target, self.config.warmup, iteration)] * len(memories)

    def estimate(self, part: Part, iteration: int, memory: DensityMemory) -> float:
        return reached_by(part, memory.target)

    def due(self, iteration: int) -> bool:
        """See `TargetDensity.due`; a stage of the warm-up begins with a sample."""
        warmup = self.config.warmup
        if warmup is None or iteration > warmup.iterations:
            return TargetDensity.due(self, iteration)
        if TargetDensity.due(self, iteration):
            return True
        before, now = (at * warmup.stages // warmup.iterations for at in (iteration - 1, iteration))
        return before < now


def aim_at(target: float, elements: float, memory: DensityMemory) -> None:
    """Has a parameter keep to a share of its elements: how many may be sent before tau moves."""
    expected = target * elements
    room = BAND * expected + CHANCE * math.sqrt(expected) + 1
    memory.target = target
    least, most = expected - room, expected + room
    if target >= 1:  # tau is as low as it need be
        least, most = 0.0, float(elements)
    memory.least, memory.most, memory.alarm = least, most, OFF * most


def correction(ratio: float, target: float) -> float:
    """What to multiply tau with, so that the share sent, that many times the target, becomes the target.

    The square root of ln(target) / ln(ratio x target): the whole way for normal magnitudes, whose tail's
    logarithm goes with the square of tau, and half the way, which converges too, for exponential ones. The
    target is between 0 and 1, the ratio below its reciprocal.
    """
    due = math.log(target)
    return math.sqrt(due / (due + math.log(ratio)))


def density_at(target: float, warmup: Warmup | None, iteration: int) -> float:
    """The density in one iteration: during the warm-up it falls in stages, exponentially, down to the target.

    Deep Gradient Compression, section 3.3: 25%, 6.25%, 1.56%, 0.4%, then 0.1%.
    """
    if warmup is None or iteration >= warmup.iterations:
        return target
    stage = iteration * warmup.stages // warmup.iterations
    ratio = float(target / warmup.start)
    return warmup.start * float(ratio ** (stage / warmup.stages))
