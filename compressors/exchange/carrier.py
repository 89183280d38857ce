"""The carrier: point-to-point messages between workers, for the hook and for all modes.

`send` starts to send a payload under a tag, and never waits for the receiver. `receive` is a future of the
next payload that a worker sent under a tag. Lengths are not announced, and no receive has to be posted
before. `mesh` connects processes, `MemoryCarrier` the simulated workers of one process.
"""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Condition, Lock
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ..errors import PeerLost

Payload = NDArray[np.uint8]

_Key = tuple[int, str]
"""Who sent a message, and its tag."""


@dataclass(frozen=True)
class Round:
    """What one worker sends in one round, and from whom it receives; each sends what another receives."""

    sends: Sequence[tuple[Payload, Sequence[int]]] = ()
    """Payloads, and the ranks of their receivers."""
    senders: Sequence[int] = ()
    """For each payload that arrives, its sender's rank; those of one sender are in the order of sending."""
    all_reduced_bytes: int | None = None
    """In place of the payloads, an all-reduce of so many bytes is counted, which this round simulates."""
    sizes: Sequence[int] = ()
    """Bytes of each payload that arrives, where messages have fixed sizes."""
    is_gather: bool = False
    """Whether each worker sends one payload, or none, to all others."""


class Carrier(ABC):
    """The point-to-point messages of one worker with all others, by rank.

    Messages of one sender under one tag arrive in the order in which they were sent. Any thread may send and
    receive.
    """

    waits = True
    """Whether others are in other processes; simulated workers take turns, and never wait."""

    def __init__(self, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self.others: Sequence[int] = [worker for worker in range(workers) if worker != rank]
        self._lock = Lock()
        self._arrived: defaultdict[_Key, deque[Payload]] = defaultdict(deque)
        self._waiting: defaultdict[_Key, deque[tuple[Future[Payload], float]]] = defaultdict(deque)
        """Futures that wait for a message, and since when, in seconds of `monotonic`."""
        self._lost: dict[int, PeerLost] = {}

    @abstractmethod
    def send(self, to: int, tag: str, payload: Payload) -> None:
        """Starts to send a payload to a rank. What is sent to a worker that is gone is dropped.

        The payload, uint8, is not copied, and must not be changed afterwards.
        """

    def receive(self, source: int, tag: str) -> Future[Payload]:
        """The next payload that a worker sends under a tag, in the CPU's memory.

        The future raises PeerLost if the worker is gone, or has sent nothing for too long; the error may name
        another worker, for which that one waited. Callbacks must not block: they run in the receiving thread,
        or at once where the payload is here.
        """
        received: Future[Payload] = Future()
        with self._lock:
            if arrived := self._arrived.get((source, tag)):
                received.set_result(arrived.popleft())
                if not arrived:
                    del self._arrived[source, tag]
                return received
            lost = self._lost.get(source)
            if lost is None:
                self._waiting[source, tag].append((received, monotonic()))
                return received
        self._announce_loss(lost)
        received.set_exception(lost)
        return received

    def exchange(self, this: Round, tag: str) -> list[Future[Payload]]:
        """Sends a worker's messages of a round; futures of those that arrive, by `senders`."""
        for payload, receivers in this.sends:
            for receiver in receivers:
                self.send(receiver, tag, payload)
        return [self.receive(sender, tag) for sender in this.senders]

    @property
    def lost(self) -> dict[int, PeerLost]:
        """By rank, the error of a worker that is gone."""
        with self._lock:
            return dict(self._lost)

    @property
    def silent(self) -> set[int]:
        """Workers from which nothing has come for a while, those that are gone included."""
        return set(self.lost)

    @abstractmethod
    def close(self) -> None:
        """Sends what is left, for a few seconds at most, and ends."""

    def _file(self, source: int, tag: str, payload: Payload) -> None:
        """Completes the first future that waits for a payload, or keeps the payload."""
        with self._lock:
            waiting = self._waiting.get((source, tag))
            if not waiting:
                self._arrived[source, tag].append(payload)
                return
            first, _ = waiting.popleft()
            if not waiting:
                del self._waiting[source, tag]
        first.set_result(payload)

    def _mark_lost(self, source: int, problem: PeerLost) -> None:
        """Fails whatever waits for a worker, now and from now on."""
        with self._lock:
            self._lost.setdefault(source, problem)
            keys = [key for key in self._waiting if key[0] == source]
            failed = [future for key in keys for future, _ in self._waiting.pop(key)]
        if failed:
            self._announce_loss(problem)
        for future in failed:
            future.set_exception(problem)

    def _announce_loss(self, problem: PeerLost) -> None:  # noqa: B027 (in memory, nobody is lost)
        """Called before the futures that wait for a worker fail."""


class MemoryCarrier(Carrier):
    """The carrier of a simulated worker: all carriers are in one process, in a shared dictionary."""

    waits = False

    def __init__(self, rank: int, workers: int, carriers: "dict[int, MemoryCarrier]") -> None:
        """Adds this carrier to those of all workers, by rank."""
        super().__init__(rank, workers)
        self._carriers = carriers
        carriers[rank] = self

    def send(self, to: int, tag: str, payload: Payload) -> None:
        self._carriers[to]._file(self.rank, tag, payload)

    def close(self) -> None:
        pass  # nothing is left


def in_memory(workers: int) -> list[MemoryCarrier]:
    """The carriers of all workers, by rank."""
    carriers: dict[int, MemoryCarrier] = {}
    return [MemoryCarrier(rank, workers, carriers) for rank in range(workers)]


class Arrivals:
    """All payloads that other workers send under one tag, in the order of arrival.

    Attributes:
        lost: by rank, workers that are gone, as of the last `take`, which returned all that they had sent.
    """

    def __init__(self, carrier: Carrier, tag: str) -> None:
        self.lost: dict[int, PeerLost] = {}
        self._carrier, self._tag = carrier, tag
        self._changed = Condition()
        self._received: list[tuple[int, Payload]] = []
        self._gone: dict[int, PeerLost] = {}
        """`lost` as of the next `take`."""
        for source in carrier.others:
            carrier.receive(source, tag).add_done_callback(partial(self._on_message, source))

    def _on_message(self, source: int, message: Future[Payload]) -> None:
        """Called when a message has arrived; takes all that follow it."""
        while message.done():
            problem = message.exception()
            with self._changed:
                if isinstance(problem, PeerLost):
                    self._gone = {**self._gone, source: problem}
                else:
                    self._received.append((source, message.result()))
                self._changed.notify_all()
            if problem is not None:
                return
            message = self._carrier.receive(source, self._tag)
        message.add_done_callback(partial(self._on_message, source))

    def take(self, wait_s: float | None = None) -> list[tuple[int, Payload]]:
        """Waits for payloads, or for the loss of another worker.

        Args:
            wait_s: seconds to wait at most; by default, without a limit.

        Returns:
            Senders and payloads, of one sender in the order of sending.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._received or len(self._gone) > len(self.lost), wait_s)
            self.lost = self._gone
            received, self._received = self._received, []
        return received
