"""DL4J's adaptive and target-sparsity rules: one tau for all parameters, a small step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from ..fields import Share, Tau
from ..ops.parts import Part
from .base import Policy, PolicyMemory, Sender
from .samples import as_tau

COUNT = 64
"""Iterations between two counts of all elements: a layer may be trained later."""


@dataclass(slots=True)
class Dl4jMemory(PolicyMemory):
    """Shared by all parameters."""

    tau: float | None = None
    at: int = 0
    """The iteration of the latest decision."""
    elements: int = 0
    """The number of elements of all parameters: the most that were seen in an iteration."""
    seen: int = 0
    """Elements seen in this iteration, if it counts them."""
    sent: int = 0


class Dl4jTau(Policy):
    """DL4J's rules: one tau for all parameters, with a step up or down if the share sent leaves a range."""

    first_field = "start"
    together = True
    memory = Dl4jMemory

    kind: Literal["dl4j"] = "dl4j"
    start: Tau = 1e-3
    """The first tau."""
    low: Share = 1e-4
    """If a smaller share of all elements was sent, tau is decreased."""
    high: Share = 1e-2
    """If a larger share was sent, tau is increased."""
    target: Share | None = None
    """Steps toward this share instead of a range: DL4J's target sparsity."""
    decay: float = Field(default=0.5 ** (1 / 20), gt=0, lt=1)
    """The factor by which tau is multiplied or divided."""

    @model_validator(mode="after")
    def _ascending(self) -> Dl4jTau:
        if self.low > self.high:
            raise ValueError(f"low = {self.low:g} is above high = {self.high:g}")
        return self

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[Dl4jMemory], method: Sender
    ) -> list[float]:
        memory = memories[0]
        if memory.tau is None:
            memory.tau, memory.at = as_tau(self.start), iteration
        if not memory.elements or iteration % COUNT == 0:
            memory.seen += sum(part.elements for part in parts)
        return [memory.tau] * len(parts)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Dl4jMemory]
    ) -> None:
        """See `Policy.note`; `decide` uses it in the next iteration."""
        if memories:
            memories[0].sent += sum(sent)

    def decide(
        self, due: Sequence[Dl4jMemory], iteration: int, memories: Mapping[str, Dl4jMemory], method: Sender
    ) -> None:
        """See `Policy.decide`: by the share of all elements that the last update sent.

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
        low, high = self.low, self.high
        if self.target is not None:
            low = high = self.target
        if sent < low * elements:
            return self.decay
        return 1 / self.decay if sent > high * elements else 1.0
