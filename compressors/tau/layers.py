"""A policy of its own for parameters whose name fits a pattern."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..bucket.layout import Part
from .base import Memory, ThresholdPolicy


@dataclass(frozen=True)
class Layered(ThresholdPolicy):
    """The policy of the first pattern that fits, or the default.

    All of them decide for each parameter by itself (`config.thresholds.LayerChoice`): none has anything to
    settle.
    """

    patterns: tuple[tuple[str, ThresholdPolicy], ...]
    default: ThresholdPolicy

    def taus(self, parts: Sequence[Part], iteration: int, memories: Sequence[Memory]) -> list[float]:
        """See `ThresholdPolicy.taus`."""
        return [
            self._of(part.name).taus((part,), iteration, (memory,))[0]
            for part, memory in zip(parts, memories, strict=True)
        ]

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `ThresholdPolicy.needs_sample`."""
        return self._of(part.name).needs_sample(part, iteration, memory)

    def note(
        self, parts: Sequence[Part], sent: Sequence[int], iteration: int, memories: Sequence[Memory]
    ) -> None:
        """See `ThresholdPolicy.note`."""
        for part, count, memory in zip(parts, sent, memories, strict=True):
            self._of(part.name).note((part,), (count,), iteration, (memory,))

    def _of(self, name: str) -> ThresholdPolicy:
        fitting = (policy for pattern, policy in self.patterns if fnmatchcase(name, pattern))
        return next(fitting, self.default)
