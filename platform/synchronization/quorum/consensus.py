"""Paxos: all workers make the same decision about who was in a round, even if the leader stops and returns.

A decision is one value of Lamport's synod (The Part-Time Parliament, 1998; Paxos Made Simple, 2001). It holds
once more than half of all workers have accepted it. A worker that takes over a round first asks more than
half of them what they have accepted. Messages may be late or lost; two workers never learn different values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum


class Phase(IntEnum):
    """What a vote says; the numbers are on the wire."""

    PREPARE = 1
    PROMISE = 2
    ACCEPT = 3
    ACCEPTED = 4
    DECIDED = 5


@dataclass(frozen=True)
class Value:
    """The decision about a round."""

    members: frozenset[int]
    """The workers whose updates count."""
    leader: int
    """The worker that leads the next round, unless another one takes over."""


@dataclass(frozen=True)
class Vote:
    """One message about a round."""

    phase: Phase
    ballot: int
    accepted: int = -1
    """In a promise: the ballot of the value that its sender has accepted; -1 if it has accepted none."""
    value: Value | None = None


Post = Callable[[int, Vote], None]
"""Sends a vote to a worker."""


class Ballots:
    """One worker's part in the decision about one round.

    Attributes:
        decided: the value, once this worker knows it.
    """

    def __init__(self, rank: int, workers: int, leader: int, post: Post) -> None:
        """Starts without a decision.

        Args:
            rank: of this worker.
            workers: how many there are; more than half of them decide.
            leader: the worker that may propose without asking first, the same on every worker.
            post: sends to another worker.
        """
        self._rank, self._workers, self._post = rank, workers, post
        self._leads = leader == rank
        self.decided: Value | None = None
        self._promised, self._accepted = 0, -1
        self._value: Value | None = None
        """The one that this worker has accepted, in that ballot."""
        self._ballot = -1
        """Of this worker's own latest proposal."""
        self._proposal: Value | None = None
        self._asks = False
        """Whether it still waits for promises: a ballot proposes one value, once."""
        self._promises: dict[int, tuple[int, Value | None]] = {}
        self._acceptances: set[int] = set()

    @property
    def proposed(self) -> bool:
        """Whether this worker has proposed anything."""
        return self._ballot >= 0

    def propose(self, members: Sequence[int]) -> None:
        """Makes the leader's first proposal. It has ballot 0, and need not ask the others first."""
        assert self._leads
        assert not self.proposed
        self._ballot = 0
        self._propose(Value(frozenset(members), self._rank))

    def take_over(self, members: Sequence[int]) -> None:
        """Asks the others what they have accepted, with a higher ballot than all that it has seen."""
        highest = max(self._promised, self._ballot, 0)
        self._ballot = (highest // self._workers + 1) * self._workers + self._rank
        self._proposal, self._promises = Value(frozenset(members), self._rank), {}
        self._acceptances, self._asks = set(), True
        self._to_all(Vote(Phase.PREPARE, self._ballot))

    def hear(self, sender: int, vote: Vote) -> None:
        """Handles a vote, and answers it."""
        if vote.phase is Phase.DECIDED:
            self._decide(vote.value)
        elif self.decided is not None:
            if vote.phase in (Phase.PREPARE, Phase.ACCEPT):
                self._send(sender, Vote(Phase.DECIDED, vote.ballot, value=self.decided))
        elif vote.phase is Phase.PREPARE and vote.ballot > self._promised:
            self._promised = vote.ballot
            self._send(sender, Vote(Phase.PROMISE, vote.ballot, self._accepted, self._value))
        elif vote.phase is Phase.ACCEPT and vote.ballot >= self._promised:
            self._promised = self._accepted = vote.ballot
            self._value = vote.value
            self._send(sender, Vote(Phase.ACCEPTED, vote.ballot))
        elif vote.ballot == self._ballot:
            self._count(sender, vote)

    def _count(self, sender: int, vote: Vote) -> None:
        """Handles an answer to this worker's own ballot."""
        if vote.phase is Phase.PROMISE and self._asks:
            self._promises[sender] = vote.accepted, vote.value
            if 2 * len(self._promises) > self._workers:
                self._asks = False
                ballot, accepted = max(self._promises.values(), key=lambda each: each[0])
                assert self._proposal is not None
                self._propose(self._proposal if ballot < 0 or accepted is None else accepted)
        elif vote.phase is Phase.ACCEPTED:
            self._acceptances.add(sender)
            if 2 * len(self._acceptances) > self._workers:
                value = self._proposal
                self._decide(value)
                self._to_all(Vote(Phase.DECIDED, self._ballot, value=value))

    def _propose(self, value: Value) -> None:
        self._proposal = value
        self._to_all(Vote(Phase.ACCEPT, self._ballot, value=value))

    def _decide(self, value: Value | None) -> None:
        assert value is not None
        assert self.decided is None or self.decided == value, "two decisions about one round"
        self.decided = value

    def _to_all(self, vote: Vote) -> None:
        for worker in range(self._workers):
            self._send(worker, vote)

    def _send(self, worker: int, vote: Vote) -> None:
        if worker == self._rank:
            self.hear(self._rank, vote)
        else:
            self._post(worker, vote)
