"""tau by parameter name."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from ..ops.parts import Part
from .base import Policy, PolicyMemory, Sender, policy_of, threshold_of
from .density import DensityTau
from .schedule import ScheduledTau
from .sidco import FittedTau

if TYPE_CHECKING:
    _Layer = float | Policy
else:
    _Layer = threshold_of({"schedule": ScheduledTau, "density": DensityTau, "sidco": FittedTau})


class LayeredTau(Policy):
    """tau by parameter name."""

    first_field = "default"

    kind: Literal["layers"] = "layers"
    default: _Layer
    """tau of parameters that match no pattern."""
    patterns: dict[str, _Layer] = Field(min_length=1)
    """tau by name pattern, such as {"conv*": 1e-3}; the first match counts."""

    def __eq__(self, other: object) -> bool:
        in_order = isinstance(other, LayeredTau) and list(self.patterns) == list(other.patterns)
        return in_order and super().__eq__(other)

    __hash__ = Policy.__hash__

    @field_validator("default", "patterns")
    @classmethod
    def _by_themselves(cls, chosen: Any) -> Any:
        for tau in chosen.values() if isinstance(chosen, dict) else (chosen,):
            if isinstance(tau, Policy) and not tau.by_itself:
                raise ValueError(f"{tau.kind} decides for all parameters together, it cannot be one layer's")
        return chosen

    def taus(
        self, parts: Sequence[Part], iteration: int, memories: Sequence[Any], method: Sender
    ) -> list[float]:
        pairs = zip(parts, memories, strict=True)
        return [self._of(part.name).taus((part,), iteration, (memory,), method)[0] for part, memory in pairs]

    def needs_sample(self, part: Part, iteration: int, memory: Any) -> bool:
        return self._of(part.name).needs_sample(part, iteration, memory)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Any]
    ) -> None:
        for part, count, memory in zip(parts, sent, memories, strict=True):
            self._of(part.name).note((part,), (count,), iteration, (memory,))

    def memory_of(self, name: str) -> type[PolicyMemory]:
        return self._of(name).memory_of(name)

    def _of(self, name: str) -> Policy:
        """The policy of the first pattern that matches, or the default."""
        matches = (tau for pattern, tau in self.patterns.items() if fnmatchcase(name, pattern))
        return policy_of(next(matches, self.default))
