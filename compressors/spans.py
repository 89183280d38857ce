"""Records when a process did what, as named spans of time, while it is switched on.

A process has one recorder, like one log: spans are recorded in many places, and the timeline is made
elsewhere. While it is off, recording costs only the check of a flag.
"""

from collections.abc import Iterator
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
