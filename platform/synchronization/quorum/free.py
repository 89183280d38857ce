"""Rounds with a quorum and a deadline, for real workers that run at their own speed."""

import logging
from secrets import randbits
from time import monotonic

import torch

from taugrad.compressors.errors import PeerLost

from ..config import Deadline, WeightsSync
from ..weights import OwnWorkers
from .decisions import Decide, close_round
from .mailroom import Mailroom
from .pace import Pace
from .training import QuorumTraining

log = logging.getLogger("taugrad")


class FreeRounds(QuorumTraining):
    """This process's worker, in rounds that close depending on what has arrived.

    A worker that has handed in its offer waits for the decision on who is in the round. A worker that has not
    looks between its steps whether the round was decided without it. It then continues from the offers of the
    others, or takes over the agreed weights if some of these are missing.
    """

    def __init__(
        self, sync: WeightsSync, own: OwnWorkers, mailroom: Mailroom, needed: int, decide: Decide
    ) -> None:
        """Takes charge; see `QuorumTraining`.

        Args:
            sync: the mode.
            own: this process's worker.
            mailroom: its.
            needed: how many workers close a round, more than half of all.
            decide: the authority that closes rounds.
        """
        super().__init__(sync, own)
        self._mail, self._needed, self._rank = mailroom, needed, mailroom.rank
        self._decide = decide
        self._deadline = sync.deadline or Deadline()
        self._pace = Pace(self._deadline)
        self._joined: set[int] = set()
        """The rounds that this worker was in, since all workers met."""
        self._ask_at = float("inf")
        """When this worker asks for agreed weights."""
        self._asked = 0
        """How often it has asked in this round."""
        self._begin_anew()

    @property
    def _round(self) -> int:
        """The number of the round that this worker is in: the first that is not in its weights."""
        return self._members[0].knows

    # Iterations.

    def _prepare(self, number: int, step: int) -> None:
        """Handles what has arrived, and continues if a round has closed.

        A pending update is handed in at once, whichever batch this worker is at.
        """
        self._mail.hear(0)
        self._follow()
        member = self._members[0]
        if member.pending is not None and member.offer is None and self._round not in self._mail.decided:
            self._hand_in(self._round)

    def _trains(self, local: int, number: int, step: int) -> bool:
        # Nothing is learned for a round that is decided: a worker that is in it may still wait for the offers
        # of others, and goes on from these.
        is_open = number == self._round and number not in self._mail.decided
        return is_open and self._members[0].pending is None

    def _close(self, number: int, step: int) -> None:
        if number == self._round:
            if number not in self._mail.decided and self._members[0].offer is None:
                self._hand_in(number)
            with self.ledger.waiting():
                while self._round == number:
                    self._mail.hear(self._patience_s())
                    self._decide_members(number)
                    self._follow()
        note = self.ledger.note(0)
        note["member"] = number in self._joined
        note["left_out"] = number not in self._joined
        self._count_sent()

    def _hand_in(self, number: int) -> None:
        body = self._offer(0, number, may_fail=True)
        self._mail.offer(number, body)
        self._mail.offers[number][self._rank] = body

    def _count_sent(self) -> None:
        wire_bytes, (nbytes, messages) = self._mail.take_counts()
        self.ledger.traffic.link_bytes[self._rank] += nbytes
        self.ledger.traffic.link_messages[self._rank] += messages
        note = self.ledger.note(0)
        note["received_bytes"] += nbytes.sum()
        note["messages"] += messages.sum()
        note["wire_bytes"] += wire_bytes

    # Deciding who is in the round.

    def _begin_round(self) -> None:
        """Starts the worker's next round."""
        self._pace.begin()
        self._ask_at, self._asked = float("inf"), 0
        self._mail.forget(self._round)

    def _decide_members(self, number: int) -> None:
        """Closes the round, if it is time and this worker's turn to do so."""
        lost, here = self._mail.lost, self._mail.offers[number]
        if self.workers - len(lost) < self._needed:
            rank, reason = next(iter(lost.items()))
            raise PeerLost(
                rank, f"{reason}; {self.workers - len(lost)} workers are left, a round needs {self._needed}"
            )
        if len(here) < self._needed or number in self._mail.decided:
            return
        self._pace.note()
        # The first of the last round's members closes it; whoever comes next does where that one does not.
        place = (self._rank - min(self._last)) % self.workers
        is_complete = not place and self._last - lost.keys() <= here.keys()
        closes_after = self._pace.deadline_s + place * self._deadline.least
        if is_complete or self._pace.waited_s >= closes_after:
            members = close_round(self._decide, self._attempt, number, here)
            self._mail.decided[number] = members
            self._mail.tell(self._mail.others, number, members)

    def _patience_s(self) -> float:
        """Seconds for which only a message can change anything."""
        return min(0.05, self._deadline.least / 2)

    # Applying the decision.

    def _follow(self) -> None:
        """Applies every round that is decided, as far as this worker can."""
        while self._went_on():
            self._begin_round()
        for whom, rounds in self._mail.asked(self._round):
            # First the decision about its round: it may have all offers, and then needs nothing else.
            if rounds - 1 in self._mail.decided:
                self._mail.tell([whom], rounds - 1, self._mail.decided[rounds - 1])
            self._mail.answer(whom, self._round, self._last, self._whole)

    def _went_on(self) -> bool:
        number, offers = self._round, self._mail.offers[self._round]
        members, state = self._mail.decided.get(number), self._mail.state
        if members is not None:
            if self._rank not in members:
                self._set_aside(0)
            elif self._members[0].offer is not None:
                self._accepted(0)
                self._joined.add(number)
            if all(member in offers for member in members):
                self._apply_round({member: offers[member] for member in members})
                self._went(number + 1, members)
                return True
        if state is not None and state[0] > number and self._members[0].offer is None:
            self._set_aside(0)
            self._whole.take(state[2])
            self.ledger.note(0)["caught_up_bytes"] += self._whole.nbytes
            self._mail.state = None
            self._went(state[0], state[1])
            return True
        self._ask(number)
        return False

    def _went(self, rounds: int, members: frozenset[int]) -> None:
        self._last = members
        self._go_on_knowing(0, rounds)

    def _ask(self, number: int) -> None:
        """Asks a worker that is ahead for the agreed weights, once it is clear that it is."""
        ahead = [rank for rank, latest in self._mail.latest.items() if latest > number]
        if not ahead and number not in self._mail.decided:
            self._ask_at = float("inf")
        elif self._ask_at == float("inf"):
            self._ask_at = monotonic() + self._deadline.least
        elif monotonic() >= self._ask_at:
            others = ahead or self._mail.others
            there = [rank for rank in others if rank not in self._mail.silent] or others
            self._mail.ask(there[self._asked % len(there)], number + 1)
            self._asked += 1
            # An answer is as large as the model, and may still be on its way.
            self._ask_at = monotonic() + self._deadline.least * 2**self._asked

    # What all workers do together.

    def _finish_rounds(self) -> None:
        began, said = monotonic(), False
        with self.ledger.waiting():
            while not (said and self._mail.all_ready(self._iterations)):
                self._mail.hear(self._patience_s() if said else 0)
                self._follow()
                if self._round == self._ended and not said:
                    self._mail.say_ready(self._iterations)
                    said = True
        self._mail.decided = {}
        self._joined = set()
        self._pace.pause(monotonic() - began)
        self._count_sent()

    def _begin_anew(self) -> None:
        attempt = torch.tensor([randbits(62)])
        self._runner.broadcast([attempt])
        self._attempt = int(attempt)
        self._last = frozenset(range(self.workers))
        self._joined = set()
        self._mail.decided = {}
        self._begin_round()
