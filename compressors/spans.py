"""Profiling: named spans of time, recorded by one recorder a process while it is on.

Spans are recorded in many places, and collected in one. While the recorder is off, recording costs only the
check of a flag.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal

Lane = Literal["compute", "wire"]
"""The training thread, which also compresses and waits; or what happens in parallel, above all messages."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span of time."""

    name: str
    """The kind, such as `backward`, `compress`, `exchange`, `wait`, `decode`: the same word in every mode."""
    lane: Lane
    began: float
    ended: float
    """Both in seconds of `perf_counter`: clocks of different machines differ."""
    about: str = ""
    """Which one, such as `bucket 3`."""


class Recorder:
    """Records spans between `start` and `stop`; any thread may add to it.

    Attributes:
        on: whether it records.
    """

    def __init__(self) -> None:
        self.on = False
        self._spans: list[Span] = []

    def start(self) -> None:
        """Starts empty."""
        self._spans, self.on = [], True

    def stop(self) -> list[Span]:
        """Returns the spans since `start`, in the order in which they ended, and stops recording."""
        self.on = False
        spans, self._spans = self._spans, []
        return spans

    def add(self, name: str, lane: Lane, began: float, ended: float, about: str = "") -> None:
        """Records a span; for arguments see `Span`."""
        if self.on:
            self._spans.append(Span(name, lane, began, ended, about))

    @contextmanager
    def computing(self, name: str, about: str = "") -> Iterator[None]:
        """Records the body of a `with` block as a span of the lane `compute`."""
        began = perf_counter()
        yield
        self.add(name, "compute", began, perf_counter(), about)


RECORDER: Final = Recorder()
"""The recorder of this process."""


# Sets of disjoint intervals: what several threads did at once counts once

Interval = tuple[float, float]
"""From and to, in seconds."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, ascending and disjoint, as the other functions take them."""
    merged: list[Interval] = []
    for began, ended in sorted(intervals):
        if merged and began <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], ended)
        elif ended > began:
            merged.append((began, ended))
    return merged


def intersection(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The intersection of two unions of intervals."""
    pairs = ((max(a, c), min(b, d)) for a, b in these for c, d in those)
    return [(began, ended) for began, ended in pairs if ended > began]


def difference(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """What lies in the former union of intervals and not in the latter."""
    parts = []
    for began, ended in these:
        at = began
        for hole_began, hole_ended in intersection([(began, ended)], those):
            parts.append((at, hole_began))
            at = hole_ended
        parts.append((at, ended))
    return [(began, ended) for began, ended in parts if ended > began]


def duration(intervals: Iterable[Interval]) -> float:
    """The sum of the intervals' lengths, in seconds."""
    return sum(ended - began for began, ended in intervals)
