"""DL4J's adaptive and target-sparsity rules: one tau for all parameters, a small step at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..bucket.layout import Part
from ..method.policies import Dl4jTau
from .base import PolicyMemory, ThresholdPolicy, as_tau

COUNT = 64
"""Iterations between two counts of all elements: a layer may be trained later."""


@dataclass(slots=True)
class Dl4jMemory(PolicyMemory):
    """Shared by all parameters."""

    tau: float | None = None
    at: int = 0
    """The iteration of the latest decision."""
    elements: int = 0
    """Of all parameters: the most that were seen in an iteration."""
    seen: int = 0
    """Elements seen in this iteration, if it counts them."""
    sent: int = 0


class Dl4j(ThresholdPolicy[Dl4jMemory]):
    """Decreases tau by a step if the last update was too sparse, and increases it if it was too dense."""

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
        """See `ThresholdPolicy.note`; `decide` uses it in the next iteration."""
        if memories:
            memories[0].sent += sum(sent)

    def decide(self, due: Sequence[Dl4jMemory], iteration: int, memories: Mapping[str, Dl4jMemory]) -> None:
        """See `ThresholdPolicy.decide`: by the share of all elements that the last update sent.

        Parameters that were held back, or absent, count as elements that were not sent.
        """
        memory = due[0]
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
