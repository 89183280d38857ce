"""A target density: tau from a sample now and then, corrected in between by what was sent."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config.base import LARGEST_TAU, SMALLEST_TAU
from ..config.thresholds import DensityTau, Warmup
from ..kernels.topk import magnitude_at
from ..parts import Part
from .base import Memory, ThresholdPolicy
from .sampling import as_tau, magnitudes_of

BAND = 0.1
"""How far off what is sent may be before tau moves: this part of what is expected, and a few elements."""
FEW = 3
"""Those few: in layers that send about as many, chance alone would move tau in most iterations."""
OFF = 4
"""How many times too many or too few elements call for a new sample at once."""
STEADY = 8
"""Elements expected below which what one iteration sent says little: as many are taken to have come in its
place as were expected."""


class _Renewed(Protocol):
    """What the configurations of all these policies have."""

    @property
    def every(self) -> int: ...


class TargetDensity(ThresholdPolicy):
    """Finds tau in a sample every few iterations, and keeps to the target in between by what was sent.

    The sample costs time and what was sent costs next to none: while it stays in a band, kept in the
    memory, nothing is done. A layer whose scale drifts is followed by the correction; one whose scale jumps
    is sampled in the next iteration, unless that did not help before.
    """

    config: _Renewed
    again: ClassVar[int] = 8
    """How many such samples there are at most until the next one is due: where what is owed lies close under
    an old tau, each may call for another."""

    @abstractmethod
    def target(self, iteration: int, memory: Memory) -> float:
        """The share of a parameter's elements to send."""

    @abstractmethod
    def estimate(self, magnitudes: NDArray[np.float32], iteration: int, memory: Memory) -> float:
        """The tau that memory["target"] of all elements reach, by the magnitudes of a sample, float32 [m]."""

    def begin(self, part: Part, sent: int, memory: Memory) -> None:
        """Takes note of what was first sent by a sample's tau."""

    def due(self, iteration: int) -> int:
        """The iteration of the next sample after one in this iteration."""
        return (iteration // self.config.every + 1) * self.config.every

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `ThresholdPolicy.needs_sample`."""
        return memory.get("next", 0.0) <= iteration

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        if iteration < memory.get("next", 0.0):
            return np.float32(memory["tau"])
        asked = memory.get("next") == 0
        memory["again"] = memory["again"] - 1 if asked else float(self.again)
        memory["target"] = self.target(iteration, memory)
        tau = as_tau(self.estimate(magnitudes_of(part), iteration, memory))
        memory["tau"], memory["next"] = float(tau), float(self.due(iteration))
        memory["least"], memory["most"] = 1.0, 0.0  # no band yet: the part may be a sample
        return tau

    def note(self, part: Part, sent: int, memory: Memory) -> None:
        """See `ThresholdPolicy.note`; for every parameter in every iteration, so it is brief."""
        least, most = memory["least"], memory["most"]
        if least <= sent <= most:
            return
        if most < least:
            self.begin(part, sent, memory)
            aim_at(memory["target"], part.elements, memory)
            least, most = memory["least"], memory["most"]
        if least <= sent <= most or self.config.every == 1:
            return
        tau, ratio = memory["tau"], (sent + STEADY) / ((least + most) / 2 + STEADY)
        # A sample of nothing but zeros says nothing of what comes after them.
        if not 1 / OFF < ratio < OFF and (memory["again"] > 0 or (ratio > 1 and tau <= SMALLEST_TAU)):
            memory["next"] = 0.0
        else:
            tau *= correction(ratio, memory["target"])
            memory["tau"] = min(max(tau, SMALLEST_TAU), LARGEST_TAU)


@dataclass(frozen=True)
class Density(TargetDensity):
    """The magnitude that a target share of a sample of the parameter's elements reaches."""

    config: DensityTau

    def target(self, iteration: int, memory: Memory) -> float:
        """See `TargetDensity.target`."""
        return density_at(self.config.target, self.config.warmup, iteration)

    def estimate(self, magnitudes: NDArray[np.float32], iteration: int, memory: Memory) -> float:
        """See `TargetDensity.estimate`."""
        return float(magnitude_at(magnitudes, memory["target"]))

    def due(self, iteration: int) -> int:
        """See `TargetDensity.due`; a stage of the warm-up begins with a sample."""
        due, warmup = super().due(iteration), self.config.warmup
        if warmup is None or iteration >= warmup.iterations:
            return due
        stage = iteration * warmup.stages // warmup.iterations
        return min(due, -(-(stage + 1) * warmup.iterations // warmup.stages))


def aim_at(target: float, elements: float, memory: Memory) -> None:
    """Has a parameter keep to a share of its elements: how many may be sent before tau moves."""
    expected = target * elements
    room = BAND * expected + FEW
    memory["target"] = target
    memory["least"], memory["most"] = expected - room, expected + room
    if target >= 1:  # tau is as low as it need be
        memory["least"], memory["most"] = 0.0, float(elements)


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
