"""A tau for each layer from one budget for all layers, decided again every few iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..bucket.layout import Part
from ..method.policies import AllocatedTau
from ..ops.cpu.topk import magnitude_at
from .allocation import CHOICES, Curves, allocate, curve_of
from .base import as_tau
from .density import DensityMemory, TargetDensity, aim_at


@dataclass(slots=True)
class AllocatedMemory(DensityMemory):
    """Of one parameter."""

    share: float | None = None
    """What was decided; the whole budget's before that."""
    elements: int = 0
    """How many it has; 0 before anything was sent."""
    sampled: int | None = None
    """The iteration of a sample that waits for the decision."""
    curve: list[float] | None = None
    """What the sample led to, float64 [3 * CHOICES], see `allocation.curve_of`."""


class Allocated(TargetDensity[AllocatedMemory]):
    """A density for each layer, kept to as `TargetDensity` does.

    In an iteration in which densities are due every parameter's sample leaves its curve in its memory. The
    next iteration begins with the decision, whichever bucket comes first, and forgets the curves. Should
    there be none, the decision waits until densities are due again.
    """

    memory = AllocatedMemory
    config: AllocatedTau

    def target(self, iteration: int, memory: AllocatedMemory) -> float:
        """See `TargetDensity.target`; before the first decision that of all layers together."""
        return self.config.density if memory.share is None else memory.share

    def estimate(self, magnitudes: NDArray[np.float32], iteration: int, memory: AllocatedMemory) -> float:
        """See `TargetDensity.estimate`."""
        if self.due(iteration):
            memory.sampled = iteration
            if magnitudes.size:
                memory.curve = curve_of(magnitudes, self.config.density, self.method.sends).ravel().tolist()
        return float(magnitude_at(magnitudes, memory.target))

    def begin(self, part: Part, sent: int, memory: AllocatedMemory) -> None:
        """See `TargetDensity.begin`."""
        memory.elements = part.elements

    def turn(self, before: float, memories: Mapping[str, AllocatedMemory]) -> None:
        """See `ThresholdPolicy.turn`: until the next decision each layer keeps its part of the budget."""
        TargetDensity.turn(self, before, memories)
        for memory in memories.values():
            memory.sampled = memory.curve = None  # it was drawn around the old budget
            if memory.share is not None:
                memory.share = min(1.0, memory.share * (self.config.density / before))

    def settle(
        self, turn: Sequence[AllocatedMemory], iteration: int, memories: Mapping[str, AllocatedMemory]
    ) -> None:
        """See `ThresholdPolicy.settle`."""
        every = self.config.every  # in most iterations there is nothing to decide, which is seen soonest so
        if iteration % every > 1 and (
            iteration > every or not any(map(self.due, (iteration - 1, iteration)))
        ):
            return

        def waits(memory: AllocatedMemory) -> bool:
            return memory.sampled is not None and memory.sampled < iteration

        if not any(map(waits, turn)):
            return
        waiting = [memories[each] for each in sorted(memories) if waits(memories[each])]
        ready = [memory for memory in waiting if memory.curve is not None and memory.elements]
        if ready:
            taus, shares = allocate(_curves(ready), self.config.density, self.method.value_bits)
            for memory, tau, share in zip(ready, taus.tolist(), shares.tolist(), strict=True):
                memory.tau, memory.share = as_tau(tau), share
                aim_at(share, memory.elements, memory)
        for memory in waiting:
            memory.sampled = memory.curve = None


def _curves(memories: Sequence[AllocatedMemory]) -> Curves:
    curves = np.array([memory.curve for memory in memories]).reshape(len(memories), 3, CHOICES)
    elements = np.array([memory.elements for memory in memories], np.float64)
    return Curves(elements, *(np.ascontiguousarray(curves[:, row]) for row in range(3)))
