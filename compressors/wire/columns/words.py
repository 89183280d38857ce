"""The words of several updates."""

from dataclasses import dataclass
from functools import cached_property

from ...ops.array import Array
from ...ops.offsets import Numbers


@dataclass(frozen=True)
class Words:
    """The words of several updates, one after the other."""

    array: Array
    """uint32, position << 1 | sign, each update's ascending."""
    ends: Numbers
    """int64 [m], behind each update's last."""

    @cached_property
    def counts(self) -> Numbers:
        """int64 [m], how many each update has."""
        found = self.ends.copy()
        found[1:] -= self.ends[:-1]
        return found
