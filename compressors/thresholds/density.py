"""A target density: tau comes from a sample every few iterations, and in between from what was sent."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ..fields import Group, Share
from ..ops.interface import SMALLEST_TAU
from ..ops.parts import Part
from .base import Policy, PolicyMemory, Sender
from .samples import as_tau, reached_by

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


class Warmup(Group):
    """A density that starts high and falls exponentially (Deep Gradient Compression, section 3.3)."""

    first_field = "iterations"

    iterations: int = Field(gt=0)
    """Length of the warm-up in iterations."""
    start: Share = 0.25
    """The density of the first stage."""
    stages: int = Field(default=4, ge=1, le=1000)
    """Number of stages. Deep Gradient Compression has four, of one epoch each."""

    def density(self, target: float, iteration: int) -> float:
        """The density in one iteration: it falls in stages, exponentially, down to the target.

        Deep Gradient Compression, section 3.3: 25%, 6.25%, 1.56%, 0.4%, then 0.1%.
        """
        if iteration >= self.iterations:
            return target
        stage = iteration * self.stages // self.iterations
        ratio = float(target / self.start)
        return self.start * float(ratio ** (stage / self.stages))


def check_falling(density: float, warmup: Warmup | None) -> None:
    """Refuses (ValueError) a warm-up that would begin below the density it leads to."""
    if warmup is not None and warmup.start < density:
        raise ValueError(
            f"a warm-up starts high: its start {warmup.start:g} is below the density {density:g}"
        )


@dataclass(slots=True)
class DensityMemory(PolicyMemory):
    """The memory of one parameter; its band is empty at first."""

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

    def set_target(self, target: float, elements: float) -> None:
        """Sets the share of its elements to send, and how many may be sent before tau moves."""
        expected = target * elements
        room = BAND * expected + CHANCE * math.sqrt(expected) + 1
        self.target = target
        self.least, self.most = expected - room, expected + room
        if target >= 1:  # tau is as low as it need be
            self.least, self.most = 0.0, float(elements)
        self.alarm = OFF * self.most


class TargetDensity(Policy):
    """Finds tau in a sample every few iterations, and corrects it in between by what was sent.

    A run begins with samples in its iterations 0, 1, 2, 4, 8, ...: residuals grow from zero, and some runs,
    such as those that exchange weights every few steps, have few iterations.

    A sample costs time, and counts of what was sent cost next to none: while they stay in a band, nothing
    changes. The correction follows a layer whose scale drifts. A layer whose scale jumps is sampled in the
    next iteration, unless that did not help before.
    """

    if TYPE_CHECKING:
        every: int
    again: ClassVar[int] = 8
    """The largest number of extra samples until the next one is due: if residuals lie just below an old tau,
    a sample may cause another."""

    @abstractmethod
    def share(self, iteration: int, memory: Any) -> float:
        """The share of a parameter's elements to send."""

    @abstractmethod
    def estimate(self, part: Part, iteration: int, memory: Any, method: Sender) -> float:
        """The tau that memory.target of all elements reach, by a sample of the part."""

    def begin(self, part: Part, sent: int, memory: Any) -> None:
        """Records what a sample's tau first led to."""

    def due(self, iteration: int) -> bool:
        """Whether every parameter is sampled in this iteration."""
        since = iteration % self.every
        return not since or (since == iteration and not since & (since - 1))

    def needs_sample(self, part: Part, iteration: int, memory: DensityMemory) -> bool:
        return memory.tau == ASKS or self.due(iteration)

    def need_samples(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[DensityMemory]
    ) -> list[bool]:
        due = self.due(iteration)
        return [due or memory.tau == ASKS for memory in memories]

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[DensityMemory], method: Sender
    ) -> list[float]:
        """See `Policy.taus`; in most iterations they stand in the memories."""
        for number, wanted in enumerate(self.need_samples(parts, iteration, memories)):
            if wanted:
                self._sample(parts[number], iteration, memories[number], method)
        return [memory.tau for memory in memories]

    def _sample(self, part: Part, iteration: int, memory: DensityMemory, method: Sender) -> None:
        if self.due(iteration):
            memory.again = self.again
        else:
            memory.again = self.again if memory.again is None else memory.again - 1
        memory.target = self.share(iteration, memory)
        memory.tau = self.estimate(part, iteration, memory, method)
        memory.least, memory.most, memory.alarm = 1.0, 0.0, 0.0  # an empty band

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[DensityMemory]
    ) -> None:
        looks = iteration % self.every % LOOK == 0
        for part, count, memory in zip(parts, sent, memories, strict=True):
            if not memory.least <= count <= memory.most if looks else count > memory.alarm:
                self._follow(part, count, memory)

    def _follow(self, part: Part, sent: int, memory: DensityMemory) -> None:
        """Corrects tau if what was sent is outside the band, or requests a new sample."""
        fresh = memory.most < memory.least
        if fresh:
            self.begin(part, sent, memory)
            memory.set_target(memory.target, part.elements)
        least, most, tau = memory.least, memory.most, memory.tau
        if least <= sent <= most or self.every == 1:
            return
        ratio = (sent + STEADY) / ((least + most) / 2 + STEADY)
        # What a new sample's tau is off by, the next one's would be, too.
        jumped = not fresh and not 1 / OFF < ratio < OFF
        # A sample of zeros alone says nothing about the next gradients.
        if jumped and ((memory.again or 0) > 0 or (ratio > 1 and tau <= SMALLEST_TAU)):
            memory.tau = ASKS
        else:
            memory.tau = as_tau(tau * correction(ratio, memory.target))


class DensityTau(TargetDensity):
    """The tau that about a target share of a layer's elements reach, found as a magnitude in a sample."""

    first_field = "target"
    by_itself = True
    memory = DensityMemory

    kind: Literal["density"] = "density"
    target: Share
    """The share of elements to send."""
    every: int = Field(default=100, ge=1)
    """Iterations from one sample to the next. In between, tau is corrected by what was sent."""
    warmup: Warmup | None = None
    """Start with a higher density."""

    @model_validator(mode="after")
    def _falling(self) -> DensityTau:
        check_falling(self.target, self.warmup)
        return self

    def share(self, iteration: int, memory: DensityMemory) -> float:
        return self._density(iteration)

    def shares(self, iteration: int, memories: Sequence[DensityMemory]) -> list[float]:
        return [self._density(iteration)] * len(memories)

    def estimate(self, part: Part, iteration: int, memory: DensityMemory, method: Sender) -> float:
        return reached_by(part, memory.target)

    def due(self, iteration: int) -> bool:
        """See `TargetDensity.due`; a stage of the warm-up begins with a sample."""
        warmup = self.warmup
        if warmup is None or iteration > warmup.iterations:
            return TargetDensity.due(self, iteration)
        if TargetDensity.due(self, iteration):
            return True
        before, now = (at * warmup.stages // warmup.iterations for at in (iteration - 1, iteration))
        return before < now

    def _density(self, iteration: int) -> float:
        return self.target if self.warmup is None else self.warmup.density(self.target, iteration)


def correction(ratio: float, target: float) -> float:
    """What to multiply tau with, so that the share sent, that many times the target, becomes the target.

    The square root of ln(target) / ln(ratio x target): the whole way for normal magnitudes, whose tail's
    logarithm goes with the square of tau, and half the way, which converges too, for exponential ones. The
    target is between 0 and 1, the ratio below its reciprocal.
    """
    due = math.log(target)
    return math.sqrt(due / (due + math.log(ratio)))
