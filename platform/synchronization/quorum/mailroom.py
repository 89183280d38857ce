"""Sorts what has arrived at this process's worker, and answers who asks for agreed weights."""

import logging
from collections import defaultdict
from collections.abc import Iterable

from taugrad.compressors.errors import PeerLost

from ..rounds import Payload
from .agreed import Agreed
from .consensus import Value, Vote
from .message import (
    Kind,
    Received,
    prefix_bytes,
    state_prefix,
    value_before_state,
    vote_from_bytes,
    vote_to_bytes,
)
from .post import Post

_LOOK_S = 0.05
"""How often whoever waits for something looks up."""

log = logging.getLogger("taugrad")


class Mailroom:
    """What has arrived and is not done with.

    Attributes:
        offers: by round and sender.
        votes: in their order, with sender and round.
        state: the latest agreed weights that came: the rounds in them, who decided on the last, their bytes.
        latest: by worker, the latest round that it has said anything about.
    """

    def __init__(self, post: Post) -> None:
        self.post = post
        self.others = [rank for rank in range(post.workers) if rank != post.rank]
        self.offers: dict[int, dict[int, Payload]] = defaultdict(dict)
        self.votes: list[tuple[int, int, Vote]] = []
        self.state: tuple[int, Value, Payload] | None = None
        self.latest: dict[int, int] = {}
        self._asks: dict[int, int] = {}
        self._ready: dict[int, int] = {}
        self._warned: set[int] = set()

    def hear(self, wait_s: float = _LOOK_S) -> None:
        """Takes in what has arrived; waits for the first of it."""
        for each in self.post.take(wait_s):
            self._sort(each)

    def _sort(self, arrived: Received) -> None:
        sender, number, workers = arrived.sender, arrived.number, self.post.workers
        match arrived.kind:
            case Kind.OFFER:
                self.offers[number][sender] = arrived.body
            case Kind.VOTE:
                self.votes.append((sender, number, vote_from_bytes(arrived.body, workers)))
            case Kind.ASK:
                self._asks[sender] = number
            case Kind.STATE if self.state is None or number > self.state[0]:
                value = value_before_state(arrived.body, workers)
                self.state = number, value, arrived.body[prefix_bytes(workers) :]
            case Kind.READY:
                self._ready[sender] = number
            case _:
                pass
        if arrived.kind in (Kind.OFFER, Kind.VOTE):
            self.latest[sender] = max(number, self.latest.get(sender, 0))

    def forget(self, before: int) -> None:
        """Lets go of the offers for rounds that are over."""
        for number in [each for each in self.offers if each < before]:
            del self.offers[number]

    def offer(self, to: Iterable[int], number: int, body: bytes) -> int:
        """Hands something in for a round; its bytes."""
        return self.post.send([*to], Kind.OFFER, number, body)

    def vote(self, to: int, number: int, vote: Vote) -> int:
        """Sends a vote; its bytes."""
        return self.post.send([to], Kind.VOTE, number, vote_to_bytes(vote, self.post.workers))

    def ask(self, whom: int, number: int) -> int:
        """Asks for the agreed weights with so many rounds, or more; the question's bytes."""
        return self.post.send([whom], Kind.ASK, number)

    def asked(self, knows: int) -> list[tuple[int, int]]:
        """Who waits for weights with at most so many rounds, and how many; they are answered now."""
        found = [(sender, number) for sender, number in self._asks.items() if number <= knows]
        for sender, _ in found:
            del self._asks[sender]
        return found

    def answer(self, whom: int, knows: int, value: Value, whole: Agreed) -> int:
        """Sends the agreed weights, which have so many rounds in them; the answer's bytes."""
        body = state_prefix(value, self.post.workers) + whole.to_bytes()
        return self.post.send([whom], Kind.STATE, knows, body)

    def say_ready(self, iterations: int) -> None:
        """Tells the others that this worker has ended its rounds before an evaluation."""
        self.post.send(self.others, Kind.READY, iterations)

    def all_ready(self, iterations: int) -> bool:
        """Whether all others have said so, too.

        Raises:
            PeerLost: one of them is gone, and never will.
        """
        waited_for = {rank for rank in self.others if self._ready.get(rank, -1) < iterations}
        for rank, reason in self.post.lost.items():
            if rank in waited_for:
                raise PeerLost(rank, f"{reason}; evaluations and checkpoints need every worker")
        for rank in waited_for & self.post.silent - self._warned:
            self._warned.add(rank)
            log.warning(
                "worker %d has been silent for a while; an evaluation or checkpoint waits for it", rank
            )
        return not waited_for
