"""A policy of its own for parameters whose name fits a pattern."""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from ..parts import Part
from .base import Memory, ThresholdPolicy


@dataclass(frozen=True)
class Layered(ThresholdPolicy):
    """The policy of the first pattern that fits, or the default."""

    patterns: tuple[tuple[str, ThresholdPolicy], ...]
    default: ThresholdPolicy

    def tau(self, part: Part, iteration: int, memory: Memory) -> np.float32:
        """See `ThresholdPolicy.tau`."""
        return self._of(part.name).tau(part, iteration, memory)

    def needs_sample(self, part: Part, iteration: int, memory: Memory) -> bool:
        """See `ThresholdPolicy.needs_sample`."""
        return self._of(part.name).needs_sample(part, iteration, memory)

    def note(self, part: Part, sent: int, memory: Memory) -> None:
        """See `ThresholdPolicy.note`."""
        self._of(part.name).note(part, sent, memory)

    def settle(self, name: str, iteration: int, memories: Mapping[str, Memory]) -> None:
        """See `ThresholdPolicy.settle`."""
        self._of(name).settle(name, iteration, memories)

    def _of(self, name: str) -> ThresholdPolicy:
        fitting = (policy for pattern, policy in self.patterns if fnmatchcase(name, pattern))
        return next(fitting, self.default)
