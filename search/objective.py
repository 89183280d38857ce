"""What makes one point of a search better than another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from .config import SearchConfig

_LEAST_BYTES = 1.0  # nothing sent at all must still have a logarithm
_HUGE_BYTES = 1e12


class Cost(Protocol):
    """Whatever reached an accuracy by sending bytes."""

    @property
    def accuracy(self) -> float:
        """0 to 1, the larger the better."""

    @property
    def wire_bytes(self) -> float:
        """The fewer the better."""


Point = TypeVar("Point", bound=Cost)


@dataclass(frozen=True)
class Outcome:
    """What a training or a point came to."""

    accuracy: float
    """0 to 1; of a point with several seeds, the mean less its standard error."""
    wire_bytes: float
    """Of all workers over the run; of several seeds, the mean."""


@dataclass(frozen=True)
class Objective:
    """An order of points, as numbers for a sampler."""

    kind: Literal["front", "accuracy_per_wire_gb", "constraint"]
    tolerance: float = 0.0
    """Percentage points."""
    baseline: Outcome | None = None
    """The run without compression; a constraint needs it."""

    @classmethod
    def of(cls, settings: SearchConfig, baseline: Outcome | None) -> "Objective":
        """The objective that a search asks for."""
        return cls(settings.objective, settings.tolerance, baseline)

    @property
    def modes(self) -> list[Literal["min", "max"]]:
        """Whether each of `values` is to be small or large."""
        if self.kind == "front":
            return ["max", "min"]
        return ["min"] if self.kind == "constraint" else ["max"]

    def values(self, point: Cost) -> list[float]:
        """A point as the sampler sees it: accuracy and log10 of bytes, or one number.

        Under a constraint a point that breaks it counts worse than any that keeps it, by as many orders of
        magnitude as points of accuracy are missing.
        """
        magnitude = math.log10(max(point.wire_bytes, _LEAST_BYTES))
        match self.kind:
            case "front":
                return [point.accuracy, magnitude]
            case "accuracy_per_wire_gb":
                return [accuracy_per_wire_gb(point)]
            case "constraint":
                missing = self.missing(point)
                if missing <= 0:
                    return [magnitude]
                assert self.baseline is not None
                return [max(magnitude, math.log10(max(self.baseline.wire_bytes, _LEAST_BYTES))) + 1 + missing]

    def worst(self) -> list[float]:
        """What the sampler sees of a point that failed: it would try it again if it saw nothing."""
        sent = _HUGE_BYTES if self.baseline is None else self.baseline.wire_bytes
        return self.values(Outcome(0.0, sent))

    def missing(self, point: Cost) -> float:
        """Percentage points of accuracy by which a point breaks the constraint; 0 or less: it keeps it."""
        if self.kind != "constraint" or self.baseline is None:
            return 0.0
        return _points_below(self.baseline.accuracy, point) - self.tolerance

    def best(self, points: Sequence[Point]) -> Point | None:
        """The best point by a single number; None for a front, and where none keeps the constraint."""
        able = [point for point in points if self.missing(point) <= 0]
        if self.kind == "front" or not able:
            return None
        sign = 1 if self.modes == ["min"] else -1
        return min(able, key=lambda point: (sign * self.values(point)[0], -point.accuracy))

    def proposed(self, points: Sequence[Point]) -> tuple[Point, str]:
        """The point to train in full, and what speaks for it, as a sentence that lacks its subject.

        It is the best one. Of a front it is the one of fewest bytes whose accuracy is at least
        min(baseline's, highest of all points) - tolerance; where none keeps a constraint, the most accurate.

        Args:
            points: those that ran in full, at least one.
        """
        best, within = self.best(points), f"sends least within {self.tolerance:g} points of"
        bare = "the accuracy without compression"
        if self.kind == "accuracy_per_wire_gb" and best is not None:
            return best, "reaches most accuracy per wire GB"
        if best is not None:
            return best, f"{within} {bare}"
        highest = min(points, key=lambda point: (-point.accuracy, point.wire_bytes))
        if self.kind == "constraint":
            return highest, f"comes nearest to {bare}"
        reached = self.baseline is not None and self.baseline.accuracy <= highest.accuracy
        limit = self.baseline.accuracy if reached and self.baseline is not None else highest.accuracy
        near = [point for point in points if _points_below(limit, point) <= self.tolerance]
        least = min(near, key=lambda point: (point.wire_bytes, -point.accuracy))
        return least, f"{within} {bare if reached else 'the most accurate one'}"


def _points_below(accuracy: float, point: Cost) -> float:
    # Accuracies are quotients; a point exactly at a limit must not fall to rounding.
    return 100 * (accuracy - point.accuracy) - 1e-9


def accuracy_per_wire_gb(point: Cost) -> float:
    """Accuracy in percent over wire GB; the papers' Ratio is over paper GB."""
    return 100 * point.accuracy / (max(point.wire_bytes, _LEAST_BYTES) / 1e9)


def dominates(a: Cost, b: Cost) -> bool:
    """Whether a is as good as b in accuracy and in bytes, and better in one of them."""
    no_worse = a.accuracy >= b.accuracy and a.wire_bytes <= b.wire_bytes
    return no_worse and (a.accuracy > b.accuracy or a.wire_bytes < b.wire_bytes)


def front(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, from few bytes to many; of equal ones the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.wire_bytes, -each.accuracy)):
        if not kept or point.accuracy > kept[-1].accuracy:
            kept.append(point)
    return kept


def in_better_fronts(point: Point, others: Sequence[Point]) -> int:
    """How many others would have to be taken away, front by front, until nothing dominates the point."""
    left, taken = list(others), 0
    while any(dominates(other, point) for other in left):
        outer = [a for a in left if not any(dominates(b, a) for b in left)]
        left = [each for each in left if each not in outer]
        taken += len(outer)
    return taken
