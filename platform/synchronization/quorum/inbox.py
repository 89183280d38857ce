"""Sorts what has arrived at this process's worker, and answers workers that ask for agreed weights."""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange.carrier import Arrivals, Carrier, Payload

from .message import MessageKind, mask_bytes, members_from_bytes, members_to_bytes, read, written

_TAG = "round"

Send = Callable[[Collection[int], str, Payload], None]
"""Sends a payload to others under a tag, and counts that."""

log = logging.getLogger("taugrad")


class Inbox:
    """What has arrived and is still needed. A worker that is gone is left out; this is not an error.

    Attributes:
        rank: of this worker.
        workers: how many there are.
        others: the ranks of all others.
        offers: by round and sender.
        decided: the members of rounds that others told of.
        state: the latest agreed weights that arrived: rounds in them, members of the last one, bytes.
        latest: by worker, the latest round about which it has sent anything.
    """

    def __init__(self, carrier: Carrier, send: Send) -> None:
        """Takes charge of what arrives at the worker of this carrier, which sends with `send`."""
        self.rank, self.workers, self.others = carrier.rank, carrier.workers, carrier.others
        self._carrier, self._send_counted = carrier, send
        self._arrivals = Arrivals(carrier, _TAG)
        self.offers: dict[int, dict[int, Payload]] = defaultdict(dict)
        self.decided: dict[int, frozenset[int]] = {}
        self.state: tuple[int, frozenset[int], Payload] | None = None
        self.latest: dict[int, int] = {}
        self._asks: dict[int, int] = {}
        self._ready: dict[int, int] = {}
        self._warned: set[int] = set()

    def poll(self, wait_s: float) -> None:
        """Handles what has arrived; waits until something has."""
        for sender, arrived in self._arrivals.take(wait_s):
            self._sort(sender, *read(sender, arrived))

    @property
    def lost(self) -> dict[int, str]:
        """Workers that are gone, and why."""
        return {rank: problem.reason for rank, problem in self._arrivals.lost.items()}

    @property
    def silent(self) -> set[int]:
        """Workers from which nothing has arrived for a while, including those that are gone."""
        return self._carrier.silent

    def _send(self, to: Iterable[int], kind: MessageKind, number: int, body: bytes = b"") -> None:
        lost = self._arrivals.lost
        self._send_counted([rank for rank in to if rank not in lost], _TAG, written(kind, number, body))

    def _sort(self, sender: int, kind: MessageKind, number: int, body: Payload) -> None:
        match kind:
            case MessageKind.OFFER:
                self.offers[number][sender] = body
            case MessageKind.DECISION:
                self.decided[number] = members_from_bytes(body, self.workers)
            case MessageKind.ASK:
                self._asks[sender] = number
            case MessageKind.STATE if self.state is None or number > self.state[0]:
                cut = mask_bytes(self.workers)
                self.state = number, members_from_bytes(body[:cut], self.workers), body[cut:]
            case MessageKind.READY:
                self._ready[sender] = number
            case _:
                pass
        if kind in (MessageKind.OFFER, MessageKind.DECISION):
            self.latest[sender] = max(number, self.latest.get(sender, 0))

    def forget(self, before: int) -> None:
        """Drops the offers for rounds that are over."""
        for number in [offer for offer in self.offers if offer < before]:
            del self.offers[number]

    def offer(self, number: int, body: Payload) -> None:
        """Sends an offer for a round.

        None goes to a worker that is silent: who misses an offer takes over the round's result instead.
        """
        there = [rank for rank in self.others if rank not in self.silent]
        self._send(there, MessageKind.OFFER, number, body.tobytes())

    def send_decision(self, to: Iterable[int], number: int, members: Collection[int]) -> None:
        """Sends the decision about a round."""
        self._send(to, MessageKind.DECISION, number, members_to_bytes(members, self.workers))

    def request_state(self, whom: int, number: int) -> None:
        """Asks for the agreed weights after this number of rounds, or more."""
        self._send([whom], MessageKind.ASK, number)

    def asked(self, knows: int) -> list[tuple[int, int]]:
        """Takes out (worker, round) of those that can be answered with the weights after `knows` rounds."""
        answerable = [(sender, number) for sender, number in self._asks.items() if number <= knows]
        for sender, _ in answerable:
            del self._asks[sender]
        return answerable

    def answer(self, whom: int, knows: int, members: Collection[int], state: Payload) -> None:
        """Sends the agreed weights after this number of rounds, as bytes."""
        body = members_to_bytes(members, self.workers) + state.tobytes()
        self._send([whom], MessageKind.STATE, knows, body)

    def say_ready(self, iterations: int) -> None:
        """Tells the others that this worker has ended its rounds before an evaluation; it is not counted."""
        for rank in self.others:
            self._carrier.send(rank, _TAG, written(MessageKind.READY, iterations))

    def all_ready(self, iterations: int) -> bool:
        """Whether all others have said so, too; raises PeerLost: one of them is gone, and never will."""
        waited_for = {rank for rank in self.others if self._ready.get(rank, -1) < iterations}
        for rank, reason in self.lost.items():
            if rank in waited_for:
                raise PeerLost(rank, f"{reason}; evaluations and checkpoints need every worker")
        for rank in waited_for & self.silent - self._warned:
            self._warned.add(rank)
            log.warning(
                "worker %d has been silent for a while; an evaluation or checkpoint waits for it", rank
            )
        return not waited_for
