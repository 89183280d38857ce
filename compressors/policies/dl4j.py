"""DL4J's adaptive and target-sparsity rules: one tau for all parameters, a small step at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..config.thresholds import Dl4jTau
from ..parts import Part
from .base import Memory, ThresholdPolicy
from .sampling import as_tau


@dataclass(frozen=True)
class Dl4j(ThresholdPolicy):
    """tau goes down a step where the last update was too sparse, and up a step where it was too dense."""

    config: Dl4jTau

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        if not all(memories):
            for part, memory in zip(parts, memories, strict=True):
                if not memory:
                    memory |= {"tau": float(np.float32(self.config.start)), "elements": float(part.elements)}
                    memory |= {"at": float(iteration), "sent": 0.0}
        return [memory["tau"] for memory in memories]

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Memory]
    ) -> None:
        """See `ThresholdPolicy.note`; it waits for the next iteration."""
        for count, memory in zip(sent, memories, strict=True):
            memory["sent"] = float(count)

    def settle(self, turn: Sequence[Memory], iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`: the share sent is that of the whole update before.

        What is held back counts, as elements that are not sent.
        """
        for memory in turn:
            if memory and memory["at"] < iteration:
                break
        else:
            return
        waiting, sent, elements, at = list[Memory](), 0.0, 0.0, float(iteration)
        for memory in memories.values():
            if memory and memory["at"] < iteration:
                waiting.append(memory)
                sent += memory["sent"]
                elements += memory["elements"]
        step, before, after = self._step(sent, elements), 0.0, 0.0
        for memory in waiting:
            memory["at"], memory["sent"] = at, 0.0
            if step != 1:
                if memory["tau"] != before:  # mostly once: the parameters' tau
                    before, after = memory["tau"], as_tau(memory["tau"] * step)
                memory["tau"] = after

    def _step(self, sent: float, elements: float) -> float:
        low, high = self.config.low, self.config.high
        if self.config.target is not None:
            low = high = self.config.target
        if sent < low * elements:
            return self.config.decay
        return 1 / self.config.decay if sent > high * elements else 1.0
