"""Rounds with a quorum and a deadline, for real workers that run at their own speed."""

import logging
from time import monotonic

import numpy as np

from taugrad.compressors.errors import PeerLost

from ..config import Deadline, WeightsSync
from ..weights import OwnWorkers
from .carriers import catching_up_bytes, offer_bytes
from .consensus import Ballots, Phase, Value, Vote
from .mailroom import Mailroom
from .meeting import ProcessMeeting
from .pace import Pace
from .training import QuorumTraining

log = logging.getLogger("taugrad")


class FreeRounds(QuorumTraining):
    """This process's worker, in rounds that close depending on what has arrived.

    A worker that has handed in its offer waits for the decision on who is in the round. A worker that has not
    looks between its steps whether the round was decided without it. It then continues from the offers of the
    others, or takes over the agreed weights if some of these are missing.
    """

    def __init__(self, sync: WeightsSync, own: OwnWorkers, mailroom: Mailroom, needed: int) -> None:
        """Takes charge; see `QuorumTraining`.

        Args:
            sync: the mode.
            own: this process's worker.
            mailroom: its.
            needed: how many workers close a round, more than half of all.
        """
        super().__init__(sync, own, ProcessMeeting(mailroom))
        self._mail, self._needed, self._rank = mailroom, needed, mailroom.rank
        self._deadline = sync.deadline or Deadline()
        self._pace = Pace(self._deadline)
        self._decided: dict[int, Value] = {}
        """The decisions by round, since all workers met: for workers that have not heard of them."""
        self._last = Value(frozenset(range(self.workers)), 0)
        """The members of the last round."""
        self._joined: set[int] = set()
        """The rounds that this worker was in, since all workers met."""
        self._wire_bytes = 0
        self._sent = self._sent_so_far()
        self._retry_at = self._ask_at = float("inf")
        """When this worker takes over the round, and when it asks for agreed weights."""
        self._asked = 0
        """How often it has asked in this round."""
        self._begin_round()

    @property
    def _round(self) -> int:
        """The number of the round that this worker is in: the first that is not in its weights."""
        return self._members[0].knows

    # Iterations.

    def _prepare(self, number: int, step: int) -> None:
        self._look()

    def _trains(self, local: int, number: int, step: int) -> bool:
        return number == self._round and self._members[0].pending is None

    def _close(self, number: int, step: int) -> None:
        if number == self._round:
            if self._ballots.decided is None and self._members[0].offer is None:
                self._hand_in(number)
            with self._waiting():
                while self._round == number:
                    self._mail.hear(self._patience_s())
                    self._coordinate(number)
                    self._follow()
        self._note(number)

    def _hand_in(self, number: int) -> None:
        body = self._offer(0, number, may_fail=True)
        self._mail.offer(self._mail.others, number, body)
        self._wire_bytes += offer_bytes(body)
        self._mail.offers[number][self._rank] = np.frombuffer(bytearray(body), np.uint8)

    def _look(self) -> None:
        """Called between steps: handles what has arrived, and continues if a round has closed.

        A pending update is handed in at once, whichever batch this worker is at.
        """
        self._mail.hear(0)
        self._follow()
        member = self._members[0]
        if member.pending is not None and member.offer is None and self._ballots.decided is None:
            self._hand_in(self._round)

    def _note(self, number: int) -> None:
        note = self._ledger.now.notes[0]
        note.member = int(number in self._joined)
        note.left_out = 1 - note.member
        self._count_sent()

    def _sent_so_far(self) -> tuple[int, int]:
        return int(self._mail.link_bytes.sum()), int(self._mail.link_messages.sum())

    def _count_sent(self) -> None:
        """Notes what this worker has sent since it last did."""
        now, note = self._sent_so_far(), self._ledger.now.notes[0]
        note.received_bytes += now[0] - self._sent[0]
        note.messages += now[1] - self._sent[1]
        note.wire_bytes += self._wire_bytes
        self._sent, self._wire_bytes = now, 0

    # Deciding who is in the round.

    def _begin_round(self) -> None:
        """Starts the worker's next round with the votes that have already arrived about it."""
        self._ballots = Ballots(self._rank, self.workers, self._last.leader, self._send_vote)
        self._pace.begin()
        self._retry_at = self._ask_at = float("inf")
        self._asked = 0
        self._mail.forget(self._round)

    def _send_vote(self, to: int, vote: Vote) -> None:
        self._wire_bytes += self._mail.vote(to, self._round, vote)

    def _hear_votes(self) -> None:
        votes, self._mail.votes = self._mail.votes, []
        for sender, number, vote in votes:
            if number == self._round:
                self._ballots.hear(sender, vote)
            elif number > self._round:
                self._mail.votes.append((sender, number, vote))
            elif vote.phase in (Phase.PREPARE, Phase.ACCEPT) and number in self._decided:
                said = Vote(Phase.DECIDED, vote.ballot, value=self._decided[number])
                self._wire_bytes += self._mail.vote(sender, number, said)

    def _coordinate(self, number: int) -> None:
        """Closes the round, if it is time and this worker's turn to do so."""
        self._hear_votes()
        lost, here = self._mail.lost, self._mail.offers[number]
        if self.workers - len(lost) < self._needed:
            rank, reason = next(iter(lost.items()))
            raise PeerLost(
                rank, f"{reason}; {self.workers - len(lost)} workers are left, a round needs {self._needed}"
            )
        if len(here) < self._needed or self._ballots.decided is not None:
            return
        self._pace.note()
        waited, deadline = self._pace.waited_s, self._pace.deadline_s
        leads = self._last.leader == self._rank
        if leads and not self._ballots.proposed:
            if waited >= deadline or self._last.members - lost.keys() <= here.keys():
                self._ballots.propose([*here])
            return
        if self._retry_at == float("inf"):
            # Whoever comes next after a leader that does not close the round, and so on.
            place = (self._rank - self._last.leader) % self.workers or self.workers
            self._retry_at = monotonic() + max(0.0, deadline - waited) + place * self._deadline.least
        elif monotonic() >= self._retry_at:
            self._retry_at = monotonic() + (self.workers + 1) * self._deadline.least
            self._ballots.take_over([*here])

    def _patience_s(self) -> float:
        """Seconds for which only a message can change anything."""
        return min(0.05, self._deadline.least / 2)

    # Applying the decision.

    def _follow(self) -> None:
        """Applies every round that is decided, as far as this worker can."""
        while self._went_on():
            self._begin_round()
            self._hear_votes()
        self._serve()

    def _went_on(self) -> bool:
        self._hear_votes()
        number, offers = self._round, self._mail.offers[self._round]
        value, state = self._ballots.decided, self._mail.state
        if value is not None:
            self._decided[number] = value
            self._settle_own(number, value)
            if all(member in offers for member in value.members):
                self._apply_round({member: offers[member] for member in value.members})
                self._went(number + 1, value)
                return True
        if state is not None and state[0] > number and self._members[0].offer is None:
            self._set_aside(0)
            self._whole.take(state[2])
            _, answer_bytes = catching_up_bytes(self._whole, self.workers)
            self._ledger.now.notes[0].caught_up_bytes += answer_bytes
            self._mail.state = None
            self._went(state[0], state[1])
            return True
        self._ask(number)
        return False

    def _settle_own(self, number: int, value: Value) -> None:
        """Notes that this worker's update is in the round, or keeps it for the next one."""
        if self._rank in value.members:
            if self._members[0].offer is not None:
                self._accepted(0)
                self._joined.add(number)
        else:
            self._set_aside(0)

    def _went(self, rounds: int, value: Value) -> None:
        self._last = value
        self._go_on_knowing(0, rounds)

    def _ask(self, number: int) -> None:
        """Asks a worker that is ahead for the agreed weights, once it is clear that it is."""
        ahead = [rank for rank, latest in self._mail.latest.items() if latest > number]
        if not ahead and self._ballots.decided is None:
            self._ask_at = float("inf")
        elif self._ask_at == float("inf"):
            self._ask_at = monotonic() + self._deadline.least
        elif monotonic() >= self._ask_at:
            others = ahead or self._mail.others
            there = [rank for rank in others if rank not in self._mail.silent] or others
            self._wire_bytes += self._mail.ask(there[self._asked % len(there)], number + 1)
            self._asked += 1
            # An answer is as large as the model, and may still be on its way.
            self._ask_at = monotonic() + self._deadline.least * 2**self._asked

    def _serve(self) -> None:
        """Answers workers that asked: first with the decision about their round, then with agreed weights."""
        for whom, rounds in self._mail.asked(self._round):
            if rounds - 1 in self._decided:
                said = Vote(Phase.DECIDED, 0, value=self._decided[rounds - 1])
                self._wire_bytes += self._mail.vote(whom, rounds - 1, said)
            self._wire_bytes += self._mail.answer(whom, self._round, self._last, self._whole)

    # What all workers do together.

    def _meet(self) -> None:
        began, said = monotonic(), False
        while True:
            if self._round == self._ended and not said:
                self._mail.say_ready(self._iterations)
                said = True
            if self._mail.all_ready(self._iterations) and said:
                break
            self._mail.hear(self._patience_s())
            self._follow()
        self._count_sent()
        self._decided = {}
        self._joined = set()
        self._pace.pause(monotonic() - began)

    def _begin_anew(self) -> None:
        self._last = Value(frozenset(range(self.workers)), 0)
        self._joined = set()
        self._begin_round()
