"""A policy of its own for parameters whose name fits a pattern."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from ..method.base import Tau
from ..method.registry import POLICIES
from ..method.thresholds import threshold_of
from .base import Memory, Policy, ThresholdPolicy
from .given import policy_of

if TYPE_CHECKING:
    from ..bucket.layout import Part
    from ..method.sparse import ThresholdedMethod

    LayerChoice = Tau | Policy
else:
    LayerChoice = threshold_of(
        {kind: each for kind, each in POLICIES.ours("layers").items() if each.by_itself}
    )


class LayeredTau(Policy):
    """tau by parameter name."""

    first_field = "default"

    kind: Literal["layers"] = "layers"
    default: LayerChoice
    """tau of parameters that match no pattern."""
    patterns: dict[str, LayerChoice] = Field(min_length=1)
    """tau by name pattern, such as {"conv*": 1e-3}; the first match counts."""

    def __eq__(self, other: object) -> bool:
        in_order = isinstance(other, LayeredTau) and list(self.patterns) == list(other.patterns)
        return in_order and super().__eq__(other)

    __hash__ = Policy.__hash__

    @field_validator("default", "patterns")
    @classmethod
    def _each_by_itself(cls, chosen: Any) -> Any:
        for each in chosen.values() if isinstance(chosen, dict) else (chosen,):
            if isinstance(each, Policy) and not each.by_itself:
                raise ValueError(f"{each.kind} decides for all parameters together, it cannot be one layer's")
        return chosen

    def build(self, method: "ThresholdedMethod") -> "Layered":
        """See `Policy.build`."""
        patterns = tuple((pattern, policy_of(each, method)) for pattern, each in self.patterns.items())
        return Layered(patterns, policy_of(self.default, method))


@dataclass(frozen=True)
class Layered(ThresholdPolicy[Any]):
    """The policy of the first pattern that fits, or the default.

    All of them decide for each parameter by itself (`Policy.by_itself`): none has anything to
    settle.
    """

    patterns: tuple[tuple[str, ThresholdPolicy[Any]], ...]
    default: ThresholdPolicy[Any]

    def taus(self, parts: Sequence["Part"], iteration: int, memories: Sequence[Any]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        return [
            self._of(part.name).taus((part,), iteration, (memory,))[0]
            for part, memory in zip(parts, memories, strict=True)
        ]

    def needs_sample(self, part: "Part", iteration: int, memory: Any) -> bool:
        """See `ThresholdPolicy.needs_sample`."""
        return self._of(part.name).needs_sample(part, iteration, memory)

    def note(
        self, parts: Sequence["Part"], sent: Sequence[int], iteration: int, memories: Sequence[Any]
    ) -> None:
        """See `ThresholdPolicy.note`."""
        for part, count, memory in zip(parts, sent, memories, strict=True):
            self._of(part.name).note((part,), (count,), iteration, (memory,))

    def memory_of(self, name: str) -> type[Memory]:
        """See `ThresholdPolicy.memory_of`."""
        return self._of(name).memory_of(name)

    def _of(self, name: str) -> ThresholdPolicy[Any]:
        fitting = (policy for pattern, policy in self.patterns if fnmatchcase(name, pattern))
        return next(fitting, self.default)
