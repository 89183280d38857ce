"""DL4J's adaptive and target-sparsity rules: one tau for all parameters, a small step at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..bucket.layout import Part
from ..method.policies import Dl4jTau
from .base import Memory, ThresholdPolicy, as_tau

COUNT = 64
"""Iterations from one in which elements are counted to the next; a layer may come to be trained later."""


@dataclass(slots=True)
class Dl4jMemory(Memory):
    """Of all parameters together."""

    tau: float | None = None
    at: int = 0
    """The iteration up to which it was settled."""
    elements: int = 0
    """How many there are, the most that were seen in an iteration."""
    seen: int = 0
    """How many have come in this iteration, where they are counted."""
    sent: int = 0
    """How many of them were sent in it."""


class Dl4j(ThresholdPolicy[Dl4jMemory]):
    """tau goes down a step where the last update was too sparse, and up a step where it was too dense."""

    memory = Dl4jMemory
    config: Dl4jTau
    together = True

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Dl4jMemory]) -> list[float]:
        memory = memories[0]
        if memory.tau is None:
            memory.tau, memory.at = as_tau(self.config.start), iteration
        if not memory.elements or iteration % COUNT == 0:
            memory.seen += sum(part.elements for part in parts)
        return [memory.tau] * len(parts)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Dl4jMemory]
    ) -> None:
        """See `ThresholdPolicy.note`; it waits for the next iteration."""
        if memories:
            memories[0].sent += sum(sent)

    def settle(self, turn: Sequence[Dl4jMemory], iteration: int, memories: Mapping[str, Dl4jMemory]) -> None:
        """See `ThresholdPolicy.settle`: the share sent is that of the whole update before.

        What is held back, or did not come in that iteration, counts as elements that are not sent.
        """
        memory = turn[0]
        if memory.tau is None or memory.at >= iteration:
            return
        memory.elements = max(memory.elements, memory.seen)
        step = self._step(memory.sent, memory.elements)
        if step != 1:
            memory.tau = as_tau(memory.tau * step)
        memory.at, memory.seen, memory.sent = iteration, 0, 0

    def _step(self, sent: int, elements: int) -> float:
        low, high = self.config.low, self.config.high
        if self.config.target is not None:
            low = high = self.config.target
        if sent < low * elements:
            return self.config.decay
        return 1 / self.config.decay if sent > high * elements else 1.0
