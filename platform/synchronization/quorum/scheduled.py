"""Rounds with a quorum that follow a schedule: simulated, or by real workers that do the same."""

from ..config import WeightsSync
from ..weights import OwnWorkers
from .carriers import Carrier, catching_up_bytes, offer_bytes
from .schedule import Kind, Schedule
from .training import QuorumTraining


class ScheduledRounds(QuorumTraining):
    """Rounds whose members all workers know in advance."""

    def __init__(self, sync: WeightsSync, own: OwnWorkers, carrier: Carrier, schedule: Schedule) -> None:
        """Takes charge; see `QuorumTraining`.

        Args:
            sync: the mode.
            own: this process's workers.
            carrier: brings the workers' messages.
            schedule: who is late, away or lost when.
        """
        super().__init__(sync, own, carrier)
        self._carrier, self._schedule = carrier, schedule

    def _prepare(self, number: int, step: int) -> None:
        fates = self._schedule.fates(number)
        for local, rank in enumerate(self.ranks):
            fate = fates[rank]
            if not fate.absent and self._members[local].knows < number:
                self._catch_up(local, number)
            if fate.kind is Kind.LOST and fate.begins and step == fate.steps:
                self._lose(local)
        self._carrier.attend(self._members[0].knows, self._whole)

    def _trains(self, local: int, number: int, step: int) -> bool:
        fate = self._schedule.fates(number)[self.ranks[local]]
        return self._members[local].pending is None and (fate.kind is Kind.HERE or step < fate.steps)

    def _close(self, number: int, step: int) -> None:
        fates = self._schedule.fates(number)
        members = [rank for rank, fate in enumerate(fates) if fate.kind is Kind.HERE]
        hearing = [rank for rank, fate in enumerate(fates) if not fate.absent]
        own = {}
        for local, rank in enumerate(self.ranks):
            note, fate = self._ledger.now.notes[local], fates[rank]
            if fate.kind is Kind.HERE:
                own[rank] = self._offer(local, number, may_fail=False)
                size, receivers = offer_bytes(own[rank]), len(hearing) - 1
                note.wire_bytes += size if receivers else 0
                note.received_bytes += size * receivers
                note.messages += receivers
                note.member = 1
                continue
            note.left_out = 1
            if fate.kind is Kind.LOST and fate.begins and fate.steps > step:
                self._lose(local)  # the run's last round may be short
            self._set_aside(local)
        if not any(rank in hearing for rank in self.ranks):
            return
        with self._waiting():
            offers = self._carrier.exchange(number, own, members, hearing, self._whole)
        self._apply_round(offers)
        for local, rank in enumerate(self.ranks):
            if rank in own:
                self._accepted(local)
            if rank in hearing:
                self._go_on_knowing(local, number + 1)

    def _catch_up(self, local: int, rounds: int) -> None:
        """A worker takes over the agreed weights from one that was in the last round."""
        last = self._schedule.fates(rounds - 1)
        giver = next(rank for rank, fate in enumerate(last) if fate.kind is Kind.HERE)
        with self._waiting():
            self._carrier.fetch(self.ranks[local], giver, rounds, self._members[local].knows, self._whole)
        self._go_on_knowing(local, rounds)
        asking, answering = catching_up_bytes(self._whole, self.workers)
        note = self._ledger.now.notes[local]
        note.wire_bytes += asking + answering
        note.received_bytes += asking + answering
        note.caught_up_bytes += answering
        note.messages += 2

    def _meet(self) -> None:
        for local in range(len(self.ranks)):
            if self._members[local].knows < self._ended:
                self._catch_up(local, self._ended)
        self._carrier.meet(self._iterations, self._ended, self._whole)

    def _begin_anew(self) -> None:
        """A schedule goes on where it was."""
