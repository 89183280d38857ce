"""Rounds with a quorum and a deadline, for real workers that run at their own speed.

A round waits for late workers for a multiple of the time that rounds usually take. One authority keeps the
first proposal of its members: an actor of the driver where Ray runs the workers (`launching/run_status.py`),
else the store of torch's process group. It outlives the workers. A decision is one write, so that two workers
never learn of two.
"""

from collections import deque
from collections.abc import Callable, Collection
from secrets import randbits
from statistics import median
from time import monotonic
from typing import Any

import torch
import torch.distributed as dist

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.tensors import to_bytes

from ...spec.synchronization import Deadline, WeightsSync
from ..weights import LocalWorker
from .inbox import Inbox
from .training import QuorumTraining

_LATEST = 16
_ENOUGH = 3
"""Rounds after which their usual time is known."""


class RoundDeadline:
    """One worker's times of rounds: from the start of its round until a quorum's offers are there."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._seconds: deque[float] = deque(maxlen=_LATEST)
        self._began, self._is_noted = monotonic(), False

    def begin(self) -> None:
        """A round begins."""
        self._began, self._is_noted = monotonic(), False

    def pause(self, seconds: float) -> None:
        """Leaves out seconds in which the worker did something else."""
        self._began += seconds

    @property
    def waited_s(self) -> float:
        """Seconds since the round began."""
        return monotonic() - self._began

    def note(self) -> None:
        """Called when a quorum's offers are there; only the first call counts."""
        if not self._is_noted:
            self._is_noted = True
            self._seconds.append(self.waited_s)

    @property
    def deadline_s(self) -> float:
        """Seconds after which a round closes without late workers."""
        if len(self._seconds) < _ENOUGH:
            return self._deadline.most
        usual_s = self._deadline.factor * median(self._seconds)
        return min(self._deadline.most, max(self._deadline.least, usual_s))


Decide = Callable[[str, str], str]
"""Writes a value under a key where there is none yet; returns the value that is there."""


def by_store(store: Any = None) -> Decide:
    """Decides in a store of torch; by default that of the process group."""
    kept = dist.distributed_c10d._get_default_store() if store is None else store

    def decide(key: str, value: str) -> str:
        there: bytes = kept.compare_set(key, "", value)
        return there.decode()

    return decide


def close_round(decide: Decide, attempt: int, number: int, members: Collection[int]) -> frozenset[int]:
    """Closes a round, unless another worker has: the members that were decided.

    `attempt` is the same on every worker, and another one each time that rounds are counted anew: what is
    repeated from a checkpoint is decided again.
    """
    proposed = ",".join(map(str, sorted(members)))
    return frozenset(map(int, decide(f"taugrad/rounds/{attempt}/{number}", proposed).split(",")))


class FreeRounds(QuorumTraining):
    """This process's worker, in rounds that close depending on what has arrived.

    A worker that has handed in its offer waits for the decision on who is in the round. A worker that has not
    looks between its steps whether the round was decided without it. It then continues from the offers of the
    others, or takes over the agreed weights if some of these are missing.
    """

    def __init__(self, sync: WeightsSync, worker: LocalWorker, needed: int, decide: Decide) -> None:
        """Takes charge of a worker; `needed` workers, more than half of all, close a round.

        `decide` is the authority that closes rounds. See `QuorumTraining`.
        """
        super().__init__(sync, worker)
        self._inbox = Inbox(worker.group.carrier, self._send)
        self._needed, self._decide = needed, decide
        self._deadline = sync.deadline or Deadline()
        self._poll_s = min(0.05, self._deadline.least / 2)
        """Seconds for which only a message can change anything."""
        self._round_deadline = RoundDeadline(self._deadline)
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
        return self._member.knows

    # Iterations.

    def _prepare(self, number: int, step: int) -> Coroutine[None]:
        """Handles what has arrived, and continues if a round has closed.

        A pending update is handed in at once, whichever batch this worker is at.
        """
        self._inbox.poll(0)
        self._follow()
        member = self._member
        if member.pending is not None and member.offered is None and self._round not in self._inbox.decided:
            self._hand_in(self._round)
        yield None

    def _trains(self, number: int, step: int) -> bool:
        # Nothing is learned for a round that is decided: a worker that is in it may still wait for the offers
        # of others, and goes on from these.
        is_open = number == self._round and number not in self._inbox.decided
        return is_open and self._member.pending is None

    def _close(self, number: int, step: int) -> Coroutine[None]:
        if number == self._round:
            if number not in self._inbox.decided and self._member.offered is None:
                self._hand_in(number)
            with self.ledger.waiting():
                while self._round == number:
                    self._inbox.poll(self._poll_s)
                    self._decide_members(number)
                    self._follow()
        note = self.ledger.note()
        note["member"] = number in self._joined
        note["left_out"] = number not in self._joined
        yield None

    def _hand_in(self, number: int) -> None:
        body = self._offer(number, may_fail=True)
        self._inbox.offer(number, body)
        self._inbox.offers[number][self.rank] = body

    # Deciding who is in the round.

    def _begin_round(self) -> None:
        """Starts the worker's next round."""
        self._round_deadline.begin()
        self._ask_at, self._asked = float("inf"), 0
        self._inbox.forget(self._round)

    def _decide_members(self, number: int) -> None:
        """Closes the round, if it is time and this worker's turn to do so."""
        lost, here = self._inbox.lost, self._inbox.offers[number]
        if self.workers - len(lost) < self._needed:
            rank, reason = next(iter(lost.items()))
            raise PeerLost(
                rank, f"{reason}; {self.workers - len(lost)} workers are left, a round needs {self._needed}"
            )
        if len(here) < self._needed or number in self._inbox.decided:
            return
        self._round_deadline.note()
        # The first of the last round's members closes it; the next one does where that one does not.
        place = (self.rank - min(self._last)) % self.workers
        is_complete = not place and self._last - lost.keys() <= here.keys()
        closes_after = self._round_deadline.deadline_s + place * self._deadline.least
        if is_complete or self._round_deadline.waited_s >= closes_after:
            members = close_round(self._decide, self._attempt, number, here)
            self._inbox.decided[number] = members
            self._inbox.send_decision(self._inbox.others, number, members)

    # Applying the decision.

    def _follow(self) -> None:
        """Applies every round that is decided, as far as this worker can."""
        while self._went_on():
            self._begin_round()
        for whom, rounds in self._inbox.asked(self._round):
            # First the decision about its round: it may have all offers, and then needs nothing else.
            if rounds - 1 in self._inbox.decided:
                self._inbox.send_decision([whom], rounds - 1, self._inbox.decided[rounds - 1])
            self._inbox.answer(whom, self._round, self._last, to_bytes(self._agreed))

    def _went_on(self) -> bool:
        number, offers = self._round, self._inbox.offers[self._round]
        members, state = self._inbox.decided.get(number), self._inbox.state
        if members is not None:
            if self.rank not in members:
                self._set_aside()
            elif self._member.offered is not None:
                self._accepted()
                self._joined.add(number)
            if all(member in offers for member in members):
                self._apply_round({member: offers[member] for member in members})
                self._last = members
                self._go_on_knowing(number + 1)
                return True
        if state is not None and state[0] > number and self._member.offered is None:
            self._set_aside()
            rounds, self._last, data = state
            self._inbox.state = None
            self._take_over(data, rounds)
            return True
        self._ask(number)
        return False

    def _ask(self, number: int) -> None:
        """Asks a worker that is ahead for the agreed weights, once it is clear that it is."""
        ahead = [rank for rank, latest in self._inbox.latest.items() if latest > number]
        if not ahead and number not in self._inbox.decided:
            self._ask_at = float("inf")
        elif self._ask_at == float("inf"):
            self._ask_at = monotonic() + self._deadline.least
        elif monotonic() >= self._ask_at:
            others = ahead or self._inbox.others
            there = [rank for rank in others if rank not in self._inbox.silent] or others
            self._inbox.request_state(there[self._asked % len(there)], number + 1)
            self._asked += 1
            # An answer is as large as the model, and may still be on its way.
            self._ask_at = monotonic() + self._deadline.least * 2**self._asked

    # What all workers do together.

    def _finish_rounds(self) -> Coroutine[None]:
        began, said = monotonic(), False
        with self.ledger.waiting():
            while not (said and self._inbox.all_ready(self._iterations)):
                self._inbox.poll(self._poll_s if said else 0)
                self._follow()
                if self._round == self._ended and not said:
                    self._inbox.say_ready(self._iterations)
                    said = True
        self._inbox.decided = {}
        self._joined = set()
        self._round_deadline.pause(monotonic() - began)
        yield None

    def _begin_anew(self) -> None:
        attempt = torch.tensor([randbits(62)])
        self._group.broadcast([attempt])
        self._attempt = int(attempt)
        self._last = frozenset(range(self.workers))
        self._joined = set()
        self._inbox.decided = {}
        self._begin_round()
