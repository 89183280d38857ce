"""A tau, or a floor, by a law: from what gradients look like in a run's first iteration, then kept."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..bucket.layout import Part
from ..config.law import Law
from ..observe import statistics_of
from .base import Memory, ThresholdPolicy
from .law import LayerSeen, by_law, features
from .sampling import as_tau, magnitudes_of


@dataclass(frozen=True)
class ByLaw(ThresholdPolicy):
    """One number for all layers; in the first iteration, when no layer knows of the others, each its own.

    A layer is looked at in its first iteration with a gradient other than zero; no residual is there yet.
    """

    law: Law

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `ThresholdPolicy.needs_sample`."""
        return "rms" not in memory

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        told = [self.said(part, iteration, memory) for part, memory in zip(parts, memories, strict=True)]
        return [1.0 if said is None else as_tau(math.exp(min(said, 700.0))) for said in told]

    def said(self, part: Part, iteration: int, memory: Memory) -> float | None:
        """The law's number for one parameter; None: there was no gradient yet."""
        if "rms" not in memory:
            seen = statistics_of(magnitudes_of(part))
            if not 0 < seen.rms < math.inf:
                return None
            memory |= {"rms": seen.rms, "p99": seen.p99, "p999": seen.p999}
            memory |= {"elements": float(part.elements), "looked": float(iteration), "alone": 1.0}
            memory["said"] = self._of([memory])
        return memory["said"]

    def settle(self, turn: Sequence[Memory], iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`: layers take the number of all that were looked at by then."""
        alone = [memory for memory in turn if "alone" in memory and memory["looked"] < iteration]
        if not alone:
            return
        said = self._of([each for each in memories.values() if each.get("looked", iteration) < iteration])
        for memory in alone:
            memory["said"] = said
            del memory["alone"]

    def _of(self, seen: list[Memory]) -> float:
        layers = [LayerSeen(each["elements"], each["rms"], each["p99"], each["p999"]) for each in seen]
        found = features(layers)
        assert found is not None  # only layers with a gradient are remembered
        return by_law(self.law, found)
