"""What a process did when: named spans of time, while somebody asks for them.

There is one recorder in a process, as there is one log: what notes a span lies in many places, and whoever
wants a timeline is elsewhere. Unless it is on, noting costs a look at a flag.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Literal

Lane = Literal["compute", "wire"]
"""The thread that trains, which also compresses and waits; or what goes on beside it, above all messages."""


@dataclass(frozen=True, slots=True)
class Span:
    """What went on for a while."""

    name: str
    """Such as `backward`, `compress`, `exchange`, `wait`, `decode`: one word for a kind, in every mode."""
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
        """Begins with none."""
        self._spans, self.on = [], True

    def stop(self) -> list[Span]:
        """The spans since `start`, in the order in which they ended; from now on nothing is kept."""
        self.on = False
        spans, self._spans = self._spans, []
        return spans

    def add(self, name: str, lane: Lane, began: float, ended: float, about: str = "") -> None:
        """Notes a span; for arguments see `Span`."""
        if self.on:
            self._spans.append(Span(name, lane, began, ended, about))

    @contextmanager
    def computing(self, name: str, about: str = "") -> Iterator[None]:
        """Notes what is done inside as a span of the lane `compute`."""
        began = perf_counter()
        yield
        self.add(name, "compute", began, perf_counter(), about)


RECORDER: Final = Recorder()
"""The process's."""
