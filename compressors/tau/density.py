"""A target density: tau comes from a sample now and then, and is corrected in between by what was sent."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from ..bucket.layout import Part
from ..method.base import SMALLEST_TAU
from ..method.policies import DensityTau, Warmup
from .base import Memory, ThresholdPolicy, as_tau, reached_by

BAND = 0.1
"""How far off what is sent may be before tau moves: this part of what is expected, and what chance does."""
CHANCE = 2
"""That is so many times the square root of what is expected, and an element: in layers that send few, chance
alone would move tau in most iterations."""
LOOK = 2
"""Iterations from one look at what was sent to the next, counted from those in which samples are due: a
correction costs time, and what it comes to shows only after it. What jumps up is seen in between, too."""
OFF = 4
"""How many times too many or too few elements call for a new sample at once."""
ASKS = 0.0
"""What stands in a memory instead of a tau that the next iteration finds in a new sample."""
STEADY = 8
"""Elements expected below which what one iteration sent says little: as many are taken to have come in its
place as were expected."""


@dataclass(slots=True)
class DensityMemory(Memory):
    """Of one parameter; at first its band holds nothing that can be sent."""

    tau: float = ASKS
    target: float = 0.0
    """The share of its elements to send."""
    again: float | None = None
    """How many samples out of turn there may still be."""
    least: float = 1.0
    """The band: the fewest elements sent at which tau stays."""
    most: float = 0.0
    """And the most."""
    alarm: float = 0.0
    """So many elements sent are seen in any iteration."""

    def forget_band(self) -> None:
        """Nothing that is sent lies in the band."""
        self.least, self.most, self.alarm = 1.0, 0.0, 0.0


D = TypeVar("D", bound=DensityMemory)


class _Renewed(Protocol):
    """What the configurations of all these policies have."""

    @property
    def every(self) -> int: ...


class TargetDensity(ThresholdPolicy[D], Generic[D]):
    """Finds tau in a sample every few iterations, and keeps to the target in between by what was sent.

    A run begins with samples in its iterations 0, 1, 2, 4, 8, ...: residuals grow from nothing, and of some
    runs, such as those that exchange weights now and then, the first few iterations are all.

    The sample costs time and what was sent costs next to none: while it stays in a band, kept in the
    memory, nothing is done. A layer whose scale drifts is followed by the correction; one whose scale jumps
    is sampled in the next iteration, unless that did not help before.
    """

    config: _Renewed
    again: ClassVar[int] = 8
    """The largest number of such samples until the next one is due: if residuals lie just below an old tau,
    each may call for another."""

    @abstractmethod
    def target(self, iteration: int, memory: D) -> float:
        """The share of a parameter's elements to send."""

    @abstractmethod
    def estimate(self, part: Part, iteration: int, memory: D) -> float:
        """The tau that memory.target of all elements reach, by a sample of the part."""

    def begin(self, part: Part, sent: int, memory: D) -> None:
        """Takes note of what was first sent by a sample's tau."""

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
        """tau by a new sample."""
        if self.due(iteration):
            memory.again = self.again
        else:
            memory.again = self.again if memory.again is None else memory.again - 1
        memory.target = self.target(iteration, memory)
        memory.tau = self.estimate(part, iteration, memory)
        memory.forget_band()

    def note(self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[D]) -> None:
        """See `ThresholdPolicy.note`; in most iterations, and of most parameters, there is nothing to do."""
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
        """Corrects tau where the band does not hold what was sent, or asks for a new sample."""
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
        # A sample of nothing but zeros says nothing of what comes after them.
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
        return [self.target(iteration, memory) for memory in memories]

    def estimate(self, part: Part, iteration: int, memory: DensityMemory) -> float:
        return reached_by(part, memory.target)

    def due(self, iteration: int) -> bool:
        """See `TargetDensity.due`; a stage of the warm-up begins with a sample."""
        warmup = self.config.warmup
        if warmup is None or iteration > warmup.iterations:
            return TargetDensity.due(self, iteration)
        if TargetDensity.due(self, iteration):
            return True
        stages = [each * warmup.stages // warmup.iterations for each in (iteration - 1, iteration)]
        return stages[0] < stages[1]


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
    logarithm goes with the square of tau, and half the way, which converges too, for exponential ones.

    Args:
        ratio: greater than 0, less than 1 / target.
        target: between 0 and 1.
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
