"""DL4J's adaptive and target-sparsity rules: one tau for all parameters, a small step at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..bucket.layout import Part
from ..config.thresholds import Dl4jTau
from .base import Memory, ThresholdPolicy
from .sampling import as_tau

COUNT = 64
"""Iterations from one in which elements are counted to the next; a layer may come to be trained later."""


@dataclass(frozen=True)
class Dl4j(ThresholdPolicy):
    """tau goes down a step where the last update was too sparse, and up a step where it was too dense."""

    config: Dl4jTau
    together: ClassVar[bool] = True

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        memory = memories[0]
        if not memory:
            memory |= {"tau": float(np.float32(self.config.start)), "at": float(iteration)}
            memory |= {"elements": 0.0, "seen": 0.0, "sent": 0.0}
        if not memory["elements"] or iteration % COUNT == 0:
            memory["seen"] += sum(part.elements for part in parts)
        return [memory["tau"]] * len(parts)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Memory]
    ) -> None:
        """See `ThresholdPolicy.note`; it waits for the next iteration."""
        if memories:
            memories[0]["sent"] += sum(sent)

    def settle(self, turn: Sequence[Memory], iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`: the share sent is that of the whole update before.

        What is held back, or did not come in that iteration, counts as elements that are not sent.
        """
        memory = turn[0]
        if not memory or memory["at"] >= iteration:
            return
        elements = max(memory["elements"], memory["seen"])
        step = self._step(memory["sent"], elements)
        if step != 1:
            memory["tau"] = as_tau(memory["tau"] * step)
        memory |= {"at": float(iteration), "elements": elements, "seen": 0.0, "sent": 0.0}

    def _step(self, sent: float, elements: float) -> float:
        low, high = self.config.low, self.config.high
        if self.config.target is not None:
            low = high = self.config.target
        if sent < low * elements:
            return self.config.decay
        return 1 / self.config.decay if sent > high * elements else 1.0
