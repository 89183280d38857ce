"""Objectives: what makes one point of a search better than another."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from taugrad.platform.tasks.metric import ACCURACY, Metric

_LEAST_BYTES = 1.0  # nothing sent at all must still have a logarithm
_HUGE_BYTES = 1e12
_ENDLESS = 1e9
"""What the sampler gets for a loss that is NaN: it accepts only finite values."""
_ROUNDING = 1e-9
"""Accuracies are quotients; a point exactly at a limit must not fall to rounding."""


@dataclass(frozen=True)
class TrialOutcome:
    """The result of a training or of a point."""

    value: float
    """The metric's value; of a point with several seeds, the mean made worse by its standard error."""
    wire_bytes: float
    """Bytes sent by all workers over the run; the mean of several seeds."""
    examples: int | None = field(default=None, compare=False)
    """Number of test examples of its evaluation; None if unknown."""
    run_id: str = field(default="", compare=False)
    """The MLflow run, of a training that has finished."""


Point = TypeVar("Point", bound=TrialOutcome)


@dataclass(frozen=True)
class Objective:
    """Ranks points, as numbers for a sampler."""

    kind: Literal["front", "accuracy_per_wire_gb", "constraint"]
    metric: Metric
    tolerance: float | None = None
    """In the metric's displayed unit: percentage points, nats; None: `Metric.margin`."""
    baseline: TrialOutcome | None = None
    """The run without compression; a constraint needs it."""

    def allowed(self, reference: float) -> float:
        """The tolerated loss against a value, in the metric's displayed unit."""
        return self.metric.margin(reference) if self.tolerance is None else self.tolerance

    @property
    def modes(self) -> list[Literal["min", "max"]]:
        """Whether each of `values` is to be small or large."""
        if self.kind == "front":
            return ["max" if self.metric.more_is_better else "min", "min"]
        return ["min"] if self.kind == "constraint" else ["max"]

    def values(self, point: TrialOutcome) -> list[float]:
        """A point as numbers for the sampler: the metric's value and log10 of bytes, or one number.

        Under a constraint, a point that violates it is worse than any other, by as many orders of magnitude
        as points (nats, ...) are missing.
        """
        magnitude = math.log10(max(point.wire_bytes, _LEAST_BYTES))
        reached = point.value if math.isfinite(point.value) else self._worst_value
        match self.kind:
            case "front":
                return [reached, magnitude]
            case "accuracy_per_wire_gb":
                return [accuracy_per_wire_gb(point)]
            case "constraint":
                missing = self.missing(TrialOutcome(reached, point.wire_bytes))
                if missing <= 0:
                    return [magnitude]
                assert self.baseline is not None
                return [max(magnitude, math.log10(max(self.baseline.wire_bytes, _LEAST_BYTES))) + 1 + missing]

    @property
    def _worst_value(self) -> float:
        return 0.0 if self.metric.is_share else -self.metric.sign * _ENDLESS

    def worst(self) -> list[float]:
        """The values of a failed point; without any, the sampler would try it again."""
        sent = _HUGE_BYTES if self.baseline is None else self.baseline.wire_bytes
        return self.values(TrialOutcome(self._worst_value, sent))

    def missing(self, point: TrialOutcome) -> float:
        """The violation of the constraint, in the metric's displayed unit; 0 or less if it holds."""
        if self.kind != "constraint" or self.baseline is None:
            return 0.0
        reference = self.baseline.value
        return self._lost(point, reference) - self.allowed(reference)

    def _lost(self, point: TrialOutcome, reference: float) -> float:
        return self.metric.lost(point.value, reference) - _ROUNDING

    def best(self, points: Sequence[Point]) -> Point | None:
        """The best point; None for a front, or if no point satisfies the constraint."""
        able = [point for point in points if self.missing(point) <= 0]
        if self.kind == "front" or not able:
            return None
        sign, better = 1 if self.modes == ["min"] else -1, -self.metric.sign
        return min(able, key=lambda one: (sign * self.values(one)[0], better * one.value, one.wire_bytes))

    def proposed(self, points: Sequence[Point]) -> tuple[Point, str]:
        """The point to train in full, and the reason, as a sentence without its subject.

        It is the best one. For a front it is the point of the fewest bytes within the tolerance of the worse
        one of the baseline and the best point. If no point satisfies a constraint, it is the nearest.
        `points` are those that ran in full, at least one.
        """
        best, sign = self.best(points), self.metric.sign
        bare = f"the {self.metric.label} without compression"
        if self.kind == "accuracy_per_wire_gb" and best is not None:
            return best, "reaches most accuracy per wire GB"
        if best is not None and self.baseline is not None:
            return best, f"{self._within(self.baseline.value)} {bare}"
        highest = min(points, key=lambda point: (-sign * point.value, point.wire_bytes))
        if self.kind == "constraint":
            return highest, f"comes nearest to {bare}"
        reached = self.baseline is not None and sign * self.baseline.value <= sign * highest.value
        limit = self.baseline.value if reached and self.baseline is not None else highest.value
        near = [point for point in points if self._lost(point, limit) <= self.allowed(limit)]
        least = min(near, key=lambda point: (point.wire_bytes, -sign * point.value))
        top = "the most accurate one" if self.metric == ACCURACY else "the best one"
        return least, f"{self._within(limit)} {bare if reached else top}"

    def _within(self, reference: float) -> str:
        return f"sends least within {self.metric.amount(self.allowed(reference))} of"


def accuracy_per_wire_gb(point: TrialOutcome) -> float:
    """Accuracy in percent over wire GB; the papers' Ratio is over paper GB."""
    return 100 * point.value / (max(point.wire_bytes, _LEAST_BYTES) / 1e9)


def dominates(a: TrialOutcome, b: TrialOutcome, metric: Metric) -> bool:
    """Whether a is as good as b in the metric and in bytes, and better in one of them."""
    no_worse = not metric.is_better(b.value, a.value) and a.wire_bytes <= b.wire_bytes
    return no_worse and (metric.is_better(a.value, b.value) or a.wire_bytes < b.wire_bytes)


def front(points: Sequence[Point], metric: Metric) -> list[Point]:
    """The Pareto front of points with finite values, from few bytes to many; of equal ones the first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.wire_bytes, -metric.sign * point.value)):
        if not kept or metric.is_better(point.value, kept[-1].value):
            kept.append(point)
    return kept


def in_better_fronts(point: Point, others: Sequence[Point], metric: Metric) -> int:
    """The number of points in better Pareto fronts, by nondominated sorting."""
    left, taken = list(others), 0
    while any(dominates(other, point, metric) for other in left):
        outer = [a for a in left if not any(dominates(b, a, metric) for b in left)]
        left = [point for point in left if point not in outer]
        taken += len(outer)
    return taken
