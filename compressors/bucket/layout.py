"""What a bucket of gradients consists of, and how it is cut into messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from ..ops.offsets import Numbers


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Part:
    """One parameter's share of a bucket."""

    name: str
    gradient: Tensor
    """Floating point [numel], contiguous, in the bucket."""
    residual: Tensor | None = None
    """float32 [numel] on the same device; None if what is not sent is dropped."""
    velocity: Tensor | None = None
    """float32 [numel] on the same device, if momentum is corrected; otherwise None."""
    rms: float | None = None
    """Root mean square of the loss's gradient, if something else is sent instead, such as weights."""

    @property
    def elements(self) -> int:
        """numel."""
        return self.gradient.numel()


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class PartTally:
    """What one parameter sent."""

    name: str
    elements: int
    sent: int
    residual_squares: float
    tau: float | None = None
    """The threshold that was used; None for rules without one."""
    paper_bits: int = 0
    """Value bits of what was sent."""


@dataclass(frozen=True)
class Place:
    """A parameter in its bucket."""

    ordinal: int
    """Index among the bucket's parameters, from 0."""
    start: int
    """Its first element in the bucket."""
    elements: int


@dataclass(frozen=True)
class Unit:
    """What one message is about, or several messages with the same coordinates.

    A sparse update's positions count from the bucket's element `base`. An update of every element has the
    elements of the places, one place after the other.
    """

    n: int
    """Elements of its updates."""
    base: int
    places: tuple[Place, ...]

    def slices(self, *, every: bool) -> list[tuple[Place, slice]]:
        """The range of each place among the unit's n elements.

        Args:
            every: for an update of every element, in which place follows place.
        """
        found, behind = [], 0
        for place in self.places:
            start = behind if every else place.start - self.base
            found.append((place, slice(start, start + place.elements)))
            behind += place.elements
        return found


@dataclass(frozen=True)
class Layout:
    """How a bucket is cut into messages. Every worker knows this without being told."""

    units: tuple[Unit, ...]
    exempt: Unit | None
    """Parameters that are sent whole, in one message after the others."""
    bucket_elements: int

    @cached_property
    def n(self) -> Numbers:
        """int64, elements of each unit."""
        return np.array([unit.n for unit in self.units], np.int64)

    @cached_property
    def starts(self) -> Numbers:
        """int64, the first element in the bucket of each unit's first place."""
        return np.array([unit.places[0].start for unit in self.units], np.int64)


def lay_out(sizes: Sequence[int], exempt: Callable[[int], bool], *, by_parameter: bool) -> Layout:
    """Cuts a bucket into units.

    Args:
        sizes: elements of its parameters, in their order.
        exempt: by ordinal, whether a parameter is sent whole.
        by_parameter: one unit for each parameter that is not exempt, instead of one for all of them.
    """
    places, start = [], 0
    for ordinal, size in enumerate(sizes):
        places.append(Place(ordinal, start, size))
        start += size
    whole = tuple(place for place in places if exempt(place.ordinal) and place.elements)
    others = tuple(place for place in places if not exempt(place.ordinal))
    if by_parameter:
        units = tuple(Unit(place.elements, place.start, (place,)) for place in others if place.elements)
    else:
        units = (Unit(start, 0, others),) if others else ()
    return Layout(units, Unit(sum(place.elements for place in whole), 0, whole) if whole else None, start)
