"""A target density: tau from a sample now and then, corrected in between by what was sent."""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

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
"""Elements expected below which what one iteration sent says little: the correction is damped by as many."""


class _Renewed(Protocol):
    """What the configurations of all these policies have."""

    @property
    def every(self) -> int: ...


class TargetDensity(ThresholdPolicy):
    """Finds tau in a sample every few iterations, and keeps to the target in between by what was sent.

    The sample costs time and what was sent costs none. A layer whose scale drifts is followed by the
    correction; one whose scale jumps is sampled in the next iteration.
    """

    config: _Renewed

    @abstractmethod
    def target(self, iteration: int, memory: Memory) -> float:
        """The share of a parameter's elements to send."""

    @abstractmethod
    def estimate(self, magnitudes: NDArray[np.float32], iteration: int, memory: Memory) -> float:
        """The tau that memory["target"] of all elements reach, by the magnitudes of a sample, float32 [m]."""

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `ThresholdPolicy.needs_sample`."""
        return memory.get("next", 0.0) <= iteration

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        if self.needs_sample(part, iteration, memory):
            memory["target"] = self.target(iteration, memory)
            memory["tau"] = float(as_tau(self.estimate(magnitudes_of(part), iteration, memory)))
            memory["next"] = float((iteration // self.config.every + 1) * self.config.every)
        return np.float32(memory["tau"])

    def note(self, part: Part, sent: int, memory: Memory) -> None:
        """See `ThresholdPolicy.note`; for every parameter in every iteration, so it is brief."""
        if self.config.every == 1:
            return
        target, elements = memory["target"], part.elements
        expected = target * elements
        if abs(sent - expected) <= BAND * expected + FEW or target >= 1:
            return
        found = achieved(sent, elements, target)
        if target / OFF < found < target * OFF:
            memory["tau"] = float(as_tau(memory["tau"] * correction(found, target)))
        else:
            memory["next"] = 0.0


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

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `ThresholdPolicy.needs_sample`; a stage of the warm-up begins with one."""
        if memory.get("next", 0.0) <= iteration:
            return True
        return self.config.warmup is not None and memory["target"] != self.target(iteration, memory)


def achieved(sent: int, elements: int, target: float) -> float:
    """The density that a pass came to, drawn towards the target where few elements were expected.

    It is the target exactly where the share sent is, whatever the number of elements.
    """
    return (sent + STEADY) / (elements + STEADY / target)


def correction(found: float, target: float) -> float:
    """What to multiply tau with, so that the density found becomes the target, both between 0 and 1.

    The square root of ln(target) / ln(found): the whole way for normal magnitudes, whose tail's logarithm
    goes with the square of tau, and half the way, which converges too, for exponential ones.
    """
    return math.sqrt(math.log(target) / math.log(found))


def density_at(target: float, warmup: Warmup | None, iteration: int) -> float:
    """The density in one iteration: during the warm-up it falls in stages, exponentially, down to the target.

    Deep Gradient Compression, section 3.3: 25%, 6.25%, 1.56%, 0.4%, then 0.1%.
    """
    if warmup is None or iteration >= warmup.iterations:
        return target
    stage = iteration * warmup.stages // warmup.iterations
    ratio = float(target / warmup.start)
    return warmup.start * float(ratio ** (stage / warmup.stages))
