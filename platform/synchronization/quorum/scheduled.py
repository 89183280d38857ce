"""Rounds with a quorum that follow a schedule: simulated, or by real workers that do the same."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange.carrier import Payload

from ..config import WeightsSync
from ..weights import OwnWorkers
from .mailroom import LOOK_S, Mailroom, catching_up_bytes, offer_bytes
from .schedule import Kind, Schedule
from .training import QuorumTraining


class ScheduledRounds(QuorumTraining):
    """Rounds whose members all workers know in advance, over the carriers of the workers here."""

    def __init__(
        self, sync: WeightsSync, own: OwnWorkers, mailrooms: Sequence[Mailroom], schedule: Schedule
    ) -> None:
        """Takes charge; see `QuorumTraining`.

        Args:
            sync: the mode.
            own: this process's workers.
            mailrooms: theirs.
            schedule: who is late, away or lost when.
        """
        super().__init__(sync, own, mailrooms)
        self._schedule = schedule

    def _prepare(self, number: int, step: int) -> None:
        fates = self._schedule.fates(number)
        for local, rank in enumerate(self.ranks):
            fate = fates[rank]
            if not fate.absent and self._members[local].knows < number:
                self._catch_up(local, number)
            if fate.kind is Kind.LOST and fate.begins and step == fate.steps:
                self._lose(local)
        self._hear(0)

    def _trains(self, local: int, number: int, step: int) -> bool:
        fate = self._schedule.fates(number)[self.ranks[local]]
        return self._members[local].pending is None and (fate.kind is Kind.HERE or step < fate.steps)

    def _close(self, number: int, step: int) -> None:
        fates = self._schedule.fates(number)
        members = [rank for rank, fate in enumerate(fates) if fate.kind is Kind.HERE]
        hearing = [rank for rank, fate in enumerate(fates) if not fate.absent]
        own = {}
        for local, rank in enumerate(self.ranks):
            note, fate = self.ledger.note(local), fates[rank]
            if fate.kind is Kind.HERE:
                own[rank] = self._offer(local, number, may_fail=False)
                size, receivers = offer_bytes(own[rank]), len(hearing) - 1
                note["wire_bytes"] += size if receivers else 0
                note["received_bytes"] += size * receivers
                note["messages"] += receivers
                note["member"] = 1
                continue
            note["left_out"] = 1
            if fate.kind is Kind.LOST and fate.begins and fate.steps > step:
                self._lose(local)  # the run's last round may be short
            self._set_aside(local)
        if not any(rank in hearing for rank in self.ranks):
            return
        with self._waiting():
            offers = self._offers_of(number, own, members, hearing)
        self._apply_round(offers)
        for local, rank in enumerate(self.ranks):
            if rank in own:
                self._accepted(local)
            if rank in hearing:
                self._go_on_knowing(local, number + 1)

    def _offers_of(
        self, number: int, own: Mapping[int, bytes], members: Collection[int], hearing: Collection[int]
    ) -> Mapping[int, Payload]:
        """A round's offers, by member.

        Args:
            number: of the round.
            own: the offers of this process's workers, by worker.
            members: the workers in the round.
            hearing: the workers that learn of it.

        Raises:
            PeerLost: a member is gone.
        """
        here = [mail for mail in self._mails if mail.rank in hearing]
        for mail in here:
            if mail.rank in own:
                mail.offer([each for each in hearing if each != mail.rank], number, own[mail.rank])
                mail.offers[number][mail.rank] = np.frombuffer(bytearray(own[mail.rank]), np.uint8)
        while not all(member in mail.offers[number] for mail in here for member in members):
            self._hear()
            for mail in here:
                for member, reason in mail.lost.items():
                    if member in members and member not in mail.offers[number]:
                        raise PeerLost(member, reason)
        offers = {member: here[0].offers[number][member] for member in members}
        for mail in self._mails:
            mail.forget(number + 1)
        return offers

    def _hear(self, wait_s: float = LOOK_S) -> None:
        """Handles what has arrived, and answers workers that asked for the agreed weights."""
        for mail, member in zip(self._mails, self._members, strict=True):
            mail.hear(wait_s if self._runner.waits else 0)
            for whom, _ in mail.asked(member.knows):
                mail.answer(whom, member.knows, range(self.workers), self._whole)

    def _catch_up(self, local: int, rounds: int) -> None:
        """A worker takes over the agreed weights from one that was in the last round."""
        last = self._schedule.fates(rounds - 1)
        with self._waiting():
            giver = next(rank for rank, fate in enumerate(last) if fate.kind is Kind.HERE)
            self._fetch(local, giver, rounds)
        self._go_on_knowing(local, rounds)
        asking, answering = catching_up_bytes(self._whole, self.workers)
        note = self.ledger.note(local)
        note["wire_bytes"] += asking + answering
        note["received_bytes"] += asking + answering
        note["caught_up_bytes"] += answering
        note["messages"] += 2

    def _fetch(self, local: int, giver: int, rounds: int) -> None:
        mail = self._mails[local]
        mail.ask(giver, rounds)
        while mail.state is None or mail.state[0] < rounds:
            self._hear()  # what the giver needs first may depend on a worker that asks this one
            if giver in mail.lost:
                raise PeerLost(giver, mail.lost[giver])
        self._whole.take(mail.state[2])
        mail.state = None

    def _finish_rounds(self) -> None:
        for local in range(len(self.ranks)):
            if self._members[local].knows < self._ended:
                self._catch_up(local, self._ended)
        for mail in self._mails:
            mail.say_ready(self._iterations)
        for mail in self._mails:
            while not mail.all_ready(self._iterations):
                self._hear()

    def _begin_anew(self) -> None:
        """A schedule goes on where it was."""
