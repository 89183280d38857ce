"""Sorts what has arrived at this process's worker, and answers workers that ask for agreed weights."""

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
"""How often a waiting worker checks what has arrived, in seconds."""

log = logging.getLogger("taugrad")


class Mailroom:
    """What has arrived and is still needed.

    Attributes:
        offers: by round and sender.
        votes: in order of arrival, with sender and round.
        state: the latest agreed weights that arrived: number of rounds in them, last decision, bytes.
        latest: by worker, the latest round about which it has sent anything.
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
        """Handles what has arrived; waits until something has."""
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
        """Drops the offers for rounds that are over."""
        for number in [each for each in self.offers if each < before]:
            del self.offers[number]

    def offer(self, to: Iterable[int], number: int, body: bytes) -> int:
        """Sends an offer for a round; returns its bytes."""
        return self.post.send([*to], Kind.OFFER, number, body)

    def vote(self, to: int, number: int, vote: Vote) -> int:
        """Sends a vote; returns its bytes."""
        return self.post.send([to], Kind.VOTE, number, vote_to_bytes(vote, self.post.workers))

    def ask(self, whom: int, number: int) -> int:
        """Asks for the agreed weights after this number of rounds, or more; returns the bytes sent."""
        return self.post.send([whom], Kind.ASK, number)

    def asked(self, knows: int) -> list[tuple[int, int]]:
        """Takes out the workers that can be answered now, with the number of rounds that each asked for.

        Args:
            knows: number of rounds in the agreed weights here.
        """
        found = [(sender, number) for sender, number in self._asks.items() if number <= knows]
        for sender, _ in found:
            del self._asks[sender]
        return found

    def answer(self, whom: int, knows: int, value: Value, whole: Agreed) -> int:
        """Sends the agreed weights after this number of rounds; returns the bytes sent."""
        body = state_prefix(value, self.post.workers) + whole.to_bytes()
        return self.post.send([whom], Kind.STATE, knows, body)

    def say_ready(self, iterations: int) -> None:
        """Tells the others that this worker has ended its rounds before an evaluation."""
        self.post.send(self.others, Kind.READY, iterations)

    def all_ready(self, iterations: int) -> bool:
        """Whether all others have said so, too.

        Raises:
            PeerLost: one of them is gone, and will never say so.
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
