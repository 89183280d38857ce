"""A tau for each layer out of one budget for all, decided anew every few iterations."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.methods import ThresholdedMethod
from ..config.quantizers import HALVES
from ..config.thresholds import AllocatedTau
from ..kernels.threshold import ThresholdRule
from ..kernels.topk import magnitude_at
from ..parts import Part
from .allocation import CHOICES, Curves, allocate, curve_of
from .base import Memory
from .density import TargetDensity
from .sampling import as_tau

_COLUMNS = ("sent", "tau", "error")


@dataclass(frozen=True)
class Allocated(TargetDensity):
    """A density for each layer, kept to as `TargetDensity` does.

    In an iteration in which densities are due every parameter's sample leaves its curve in its memory. The
    next iteration begins with the decision, whichever bucket comes first, and forgets the curves.
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
        if iteration % self.config.every == 0:
            memory["sampled"] = float(iteration)
            if magnitudes.size:
                curve = curve_of(magnitudes, self.config.density, self.rule)
                for column, values in zip(_COLUMNS, curve, strict=True):
                    memory |= {f"{column} {choice}": float(value) for choice, value in enumerate(values)}
        return float(magnitude_at(magnitudes, memory["target"]))

    def note(self, part: Part, sent: int, memory: Memory) -> None:
        """See `ThresholdPolicy.note`."""
        if "sampled" in memory:
            memory["elements"] = float(part.elements)
        super().note(part, sent, memory)

    def settle(self, name: str, iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`."""
        if memories.get(name, {}).get("sampled", iteration) >= iteration:
            return
        waiting = [memories[each] for each in sorted(memories) if "sampled" in memories[each]]
        ready = [memory for memory in waiting if "sent 0" in memory and "elements" in memory]
        if ready:
            taus, shares = allocate(_curves(ready), self.config.density, self.value_bits)
            for memory, tau, share in zip(ready, taus, shares, strict=True):
                memory["tau"], memory["share"] = float(as_tau(float(tau))), float(share)
                memory["target"] = memory["share"]
        for memory in waiting:
            del memory["sampled"]
            for choice in range(CHOICES):
                for column in _COLUMNS:
                    memory.pop(f"{column} {choice}", None)


def _curves(memories: list[Memory]) -> Curves:
    columns = (
        np.array([[memory[f"{column} {choice}"] for choice in range(CHOICES)] for memory in memories])
        for column in _COLUMNS
    )
    return Curves(np.array([memory["elements"] for memory in memories]), *columns)


def value_bits(method: ThresholdedMethod) -> float:
    """What an element takes that a method sends, besides its position.

    A sign takes a bit. Multiples of tau are mostly 1 and 2, which Huffman's code writes in about 3 bits.
    """
    quantizer = getattr(method, "quantize", None)
    if quantizer is None:
        return {"wgt": 32.0, "bgt": 1.0, "qgt": 4.0, "strom": 1.0}[method.kind]
    return float(getattr(quantizer, "bits", 16 if quantizer.kind in HALVES else 8))
