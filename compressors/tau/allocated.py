"""A tau for each layer out of one budget for all, decided anew every few iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from ..bucket.layout import Part
from ..config.methods import ThresholdedMethod
from ..config.quantizers import HALVES
from ..config.thresholds import AllocatedTau
from ..ops.cpu.topk import magnitude_at
from ..ops.results import ThresholdRule
from .allocation import CHOICES, Curves, allocate, curve_of
from .base import Memory
from .density import TargetDensity, aim_at
from .sampling import as_tau

_KEYS = tuple(f"{column} {choice}" for column in ("sent", "tau", "error") for choice in range(CHOICES))
"""Under which a curve stands in a memory, row after row."""
_curve = itemgetter(*_KEYS)


@dataclass(frozen=True)
class Allocated(TargetDensity):
    """A density for each layer, kept to as `TargetDensity` does.

    In an iteration in which densities are due every parameter's sample leaves its curve in its memory. The
    next iteration begins with the decision, whichever bucket comes first, and forgets the curves. Should
    there be none, the decision waits until densities are due again.
    """

    config: AllocatedTau
    rule: ThresholdRule
    value_bits: float
    """Of an element sent, besides its position."""

    def target(self, iteration: int, memory: Memory) -> float:
        """See `TargetDensity.target`; before the first decision that of all layers together."""
        return memory.get("share", self.config.density)

    def estimate(self, magnitudes: NDArray[np.float32], iteration: int, memory: Memory) -> float:
        """See `TargetDensity.estimate`."""
        if self.due(iteration):
            memory["sampled"] = float(iteration)
            if magnitudes.size:
                curve = curve_of(magnitudes, self.config.density, self.rule)
                memory.update(zip(_KEYS, curve.ravel().tolist(), strict=True))
        return float(magnitude_at(magnitudes, memory["target"]))

    def begin(self, part: Part, sent: int, memory: Memory) -> None:
        """See `TargetDensity.begin`."""
        memory["elements"] = float(part.elements)

    def settle(self, turn: Sequence[Memory], iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`."""
        every = self.config.every  # in most iterations there is nothing to decide, which is seen soonest so
        if iteration % every > 1 and (
            iteration > every or not any(map(self.due, (iteration - 1, iteration)))
        ):
            return

        def waits(memory: Memory) -> bool:
            return memory.get("sampled", iteration) < iteration

        if not any(map(waits, turn)):
            return
        waiting = [memories[each] for each in sorted(memories) if waits(memories[each])]
        ready = [memory for memory in waiting if _KEYS[0] in memory and "elements" in memory]
        if ready:
            taus, shares = allocate(_curves(ready), self.config.density, self.value_bits)
            for memory, tau, share in zip(ready, taus.tolist(), shares.tolist(), strict=True):
                memory["tau"], memory["share"] = as_tau(tau), share
                aim_at(share, memory["elements"], memory)
        for memory in waiting:
            del memory["sampled"]
            for key in _KEYS:
                memory.pop(key, None)


def _curves(memories: list[Memory]) -> Curves:
    curves = np.array([_curve(memory) for memory in memories]).reshape(len(memories), 3, CHOICES)
    elements = np.array([memory["elements"] for memory in memories])
    return Curves(elements, *(np.ascontiguousarray(curves[:, row]) for row in range(3)))


def value_bits(method: ThresholdedMethod) -> float:
    """What an element takes that a method sends, besides its position.

    A sign takes a bit. Multiples of tau are mostly 1 and 2, which Huffman's code writes in about 3 bits.
    """
    quantizer = getattr(method, "quantize", None)
    if quantizer is None:
        return {"wgt": 32.0, "bgt": 1.0, "qgt": 4.0, "strom": 1.0}[method.kind]
    return float(getattr(quantizer, "bits", 16 if quantizer.kind in HALVES else 8))
