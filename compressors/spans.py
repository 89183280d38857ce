"""Records when a process did what, as named spans of time, while it is switched on.

A process has one recorder, like one log: spans are recorded in many places, and the timeline is made
elsewhere. While it is off, recording costs only the check of a flag.
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
    """Keeps spans between `start` and `stop`; threads may add to it at the same time.

    Attributes:
        on: whether it does.
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
        """Records what is done inside as a span of the lane `compute`."""
        began = perf_counter()
        yield
        self.add(name, "compute", began, perf_counter(), about)


RECORDER: Final = Recorder()
"""The recorder of this process."""


# Sets of moments, as intervals that do not overlap: what several threads did at once counts once

Interval = tuple[float, float]
"""From and to, in seconds."""


def united(intervals: Iterable[Interval]) -> list[Interval]:
    """The moments that lie in any of these: ascending and apart, as the other functions have them."""
    apart: list[Interval] = []
    for began, ended in sorted(intervals):
        if apart and began <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], ended)
        elif ended > began:
            apart.append((began, ended))
    return apart


def common(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The moments that lie in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in these for c, d in those)
    return [(began, ended) for began, ended in pairs if ended > began]


def without(these: Sequence[Interval], those: Sequence[Interval]) -> list[Interval]:
    """The moments that lie in the former and not in the latter."""
    left = []
    for began, ended in these:
        at = began
        for hole_began, hole_ended in common([(began, ended)], those):
            left.append((at, hole_began))
            at = hole_ended
        left.append((at, ended))
    return [(began, ended) for began, ended in left if ended > began]


def seconds(intervals: Iterable[Interval]) -> float:
    """How long they are together."""
    return sum(ended - began for began, ended in intervals)
