"""DL4J's adaptive and target-sparsity rules: one tau for all parameters, a small step at a time."""

from collections.abc import Mapping
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

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`; what is noted of this iteration waits for the next one."""
        if "tau" not in memory:
            memory |= {"tau": float(np.float32(self.config.start)), "elements": float(part.elements)}
        memory["at"], memory["sent"] = float(iteration), 0.0
        return np.float32(memory["tau"])

    def note(self, part: Part, sent: int, memory: Memory) -> None:
        """See `ThresholdPolicy.note`."""
        memory["sent"] = float(sent)

    def settle(self, name: str, iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`: the share sent is that of the whole update before."""
        if memories[name].get("at", iteration) >= iteration:
            return
        waiting, sent, elements = list[Memory](), 0.0, 0.0
        for memory in memories.values():
            if memory.get("at", iteration) < iteration:
                waiting.append(memory)
                sent, elements = sent + memory["sent"], elements + memory["elements"]
        step = self._step(sent, elements)
        moved: dict[float, float] = {}  # mostly one: the parameters' tau
        for memory in waiting:
            del memory["at"]
            if step != 1:
                tau = memory["tau"]
                if tau not in moved:
                    moved[tau] = float(as_tau(tau * step))
                memory["tau"] = moved[tau]

    def _step(self, sent: float, elements: float) -> float:
        low, high = self.config.low, self.config.high
        if self.config.target is not None:
            low = high = self.config.target
        if sent < low * elements:
            return self.config.decay
        return 1 / self.config.decay if sent > high * elements else 1.0
