"""Which worker is late, away or lost in which round. It is drawn from a seed, so it is the same everywhere.

Legend: N workers, of which `needed` close a round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from ..config import RoundSchedule


class Presence(Enum):
    """What happens to a worker in a round."""

    PRESENT = auto()
    """It hands in what it has."""
    LATE = auto()
    """It is left out, and learns what the others agree on."""
    AWAY = auto()
    """It is left out and learns nothing."""
    LOST = auto()
    """It is left out and learns nothing, and what it has not sent is gone."""


@dataclass(frozen=True)
class WorkerEvent:
    """Of one worker in one round."""

    kind: Presence = Presence.PRESENT
    steps: int = 0
    """If it is left out: how many steps it makes first."""
    begins: bool = False
    """Whether the worker went away, or was lost, in this round."""

    @property
    def absent(self) -> bool:
        """Whether it hears nothing."""
        return self.kind in (Presence.AWAY, Presence.LOST)


class Drawn:
    """A course drawn from a seed, round by round.

    There is a quorum in each, and an absent worker is back in the round after.
    """

    def __init__(self, course: RoundSchedule, workers: int, needed: int, every: int) -> None:
        """Draws nothing yet. Of N workers `needed` close a round, which has `every` steps."""
        self._course, self._workers, self._needed, self._every = course, workers, needed, every
        self._rounds: list[list[WorkerEvent]] = []
        self._left = [0] * workers
        """By worker, rounds of its absence behind those that are drawn."""

    def events(self, number: int) -> Sequence[WorkerEvent]:
        """By worker, in a round counted from 0."""
        while len(self._rounds) <= number:
            self._rounds.append(self._draw(len(self._rounds)))
        return self._rounds[number]

    def _draw(self, number: int) -> list[WorkerEvent]:
        course, random = self._course, np.random.default_rng([self._course.seed, number])
        chances, steps = random.random(self._workers), random.integers(0, self._every, self._workers)
        lengths = random.integers(*course.rounds, self._workers, endpoint=True)
        before = self._rounds[-1] if self._rounds else [WorkerEvent()] * self._workers
        events = [
            WorkerEvent(before[worker].kind) if self._left[worker] else WorkerEvent()
            for worker in range(self._workers)
        ]
        spare = sum(event.kind is Presence.PRESENT for event in events) - self._needed
        for worker in random.permutation(self._workers).tolist():
            kind = self._kind(float(chances[worker]))
            if self._left[worker]:
                self._left[worker] -= 1
            elif spare > 0 and kind is not Presence.PRESENT and not before[worker].absent:
                spare -= 1
                events[worker] = WorkerEvent(kind, int(steps[worker]), begins=kind is not Presence.LATE)
                self._left[worker] = int(lengths[worker]) - 1 if kind is not Presence.LATE else 0
        return events

    def _kind(self, chance: float) -> Presence:
        course = self._course
        for kind, share in (
            (Presence.LATE, course.late),
            (Presence.AWAY, course.away),
            (Presence.LOST, course.lost),
        ):
            if chance < share:
                return kind
            chance -= share
        return Presence.PRESENT
