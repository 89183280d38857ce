"""Rounds with a quorum that follow a schedule: simulated, or by real workers that do the same.

All workers know the schedule, so each knows what the others send, and when: nobody has to be asked.
Which worker is late, away or lost in which round is drawn from a seed.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from itertools import accumulate

import numpy as np

from taugrad.compressors.exchange.carrier import Payload
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.tensors import to_bytes

from ...spec.synchronization import RoundSchedule, WeightsSync
from ..weights import LocalWorker
from .training import QuorumTraining


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
    """A worker's events in one round."""

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
        kinds = (Presence.LATE, Presence.AWAY, Presence.LOST, Presence.PRESENT)
        limits = list(accumulate((course.late, course.away, course.lost)))
        lengths = random.integers(*course.rounds, self._workers, endpoint=True)
        before = self._rounds[-1] if self._rounds else [WorkerEvent()] * self._workers
        events = [
            WorkerEvent(before[worker].kind) if self._left[worker] else WorkerEvent()
            for worker in range(self._workers)
        ]
        spare = sum(event.kind is Presence.PRESENT for event in events) - self._needed
        for worker in random.permutation(self._workers).tolist():
            kind = kinds[bisect_right(limits, chances[worker])]
            if self._left[worker]:
                self._left[worker] -= 1
            elif spare > 0 and kind is not Presence.PRESENT and not before[worker].absent:
                spare -= 1
                events[worker] = WorkerEvent(kind, int(steps[worker]), begins=kind is not Presence.LATE)
                self._left[worker] = int(lengths[worker]) - 1 if kind is not Presence.LATE else 0
        return events


_OFFER, _AGREED = "offer", "agreed"


class ScheduledRounds(QuorumTraining):
    """Rounds whose members all workers know in advance."""

    def __init__(self, sync: WeightsSync, worker: LocalWorker, needed: int) -> None:
        """Takes charge of a worker; `needed` workers close a round. Without a schedule, nobody is late."""
        super().__init__(sync, worker)
        self._schedule = Drawn(sync.schedule or RoundSchedule(), self.workers, needed, sync.every)
        self._carrier = worker.group.carrier
        self._begin_anew()

    def _prepare(self, number: int, step: int) -> Coroutine[None]:
        events = self._schedule.events(number)
        yield from self._catch_up([rank for rank, event in enumerate(events) if not event.absent], number)
        event = events[self.rank]
        if event.kind is Presence.LOST and event.begins and step == event.steps:
            self._lose()

    def _trains(self, number: int, step: int) -> bool:
        event = self._schedule.events(number)[self.rank]
        return self._member.pending is None and (event.kind is Presence.PRESENT or step < event.steps)

    def _close(self, number: int, step: int) -> Coroutine[None]:
        events, note = self._schedule.events(number), self.ledger.note()
        members = [rank for rank, event in enumerate(events) if event.kind is Presence.PRESENT]
        hearing = [rank for rank, event in enumerate(events) if not event.absent]
        offers: dict[int, Payload] = {}
        event = events[self.rank]
        if event.kind is Presence.PRESENT:
            body = offers[self.rank] = self._offer(number, may_fail=False)
            self._send([receiver for receiver in hearing if receiver != self.rank], _OFFER, body)
            note["member"] = 1
        else:
            note["left_out"] = 1
            if event.kind is Presence.LOST and event.begins and event.steps > step:
                self._lose()  # the run's last round may be short
            self._set_aside()
        for rank in hearing:
            self._known[rank] = number + 1
        if event.absent:
            return
        yield None
        with self.ledger.waiting():
            for member in set(members) - {self.rank}:
                offers[member] = self._carrier.receive(member, _OFFER).result()
        yield partial(self._apply_round, offers)
        if event.kind is Presence.PRESENT:
            self._accepted()
        self._go_on_knowing(number + 1)

    def _catch_up(self, ranks: Iterable[int], rounds: int) -> Coroutine[None]:
        """Workers that were absent take over the agreed weights after so many rounds.

        They come from one that was in the last round; raises PeerLost where that one is gone.
        """
        behind = [rank for rank in ranks if self._known[rank] < rounds]
        if not behind:
            return
        last = self._schedule.events(rounds - 1)
        giver = next(rank for rank, event in enumerate(last) if event.kind is Presence.PRESENT)
        for rank in behind:
            self._known[rank] = rounds
        for rank in behind if self.rank == giver else ():
            self._send([rank], _AGREED, to_bytes(self._agreed))
        yield None
        if self.rank in behind:
            with self.ledger.waiting():
                data = self._carrier.receive(giver, _AGREED).result()
            self._take_over(data, rounds)

    def _finish_rounds(self) -> Coroutine[None]:
        yield from self._catch_up(range(self.workers), self._ended)

    def _begin_anew(self) -> None:
        """A schedule goes on where it was."""
        self._known = [self._ended] * self.workers
        """By worker, how many rounds are in the weights from which it continues."""
