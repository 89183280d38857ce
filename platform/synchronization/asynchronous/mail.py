"""One worker's mail: sends its messages to all others, and keeps what arrives until it is due.

Workers apply what has arrived, or exactly what a schedule says. Simulated workers have a schedule, and a
carrier in memory. A message has a head of 32 bytes, then 4 bytes per worker that say how many of its updates
the sender had applied, then the compressor's payload (docs/reference/messages.md).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from time import perf_counter

import numpy as np

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Arrivals, Carrier, Payload
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import is_refusal

from .schedule import Schedule

HEAD = Struct("<IIQdQ")
"""Kind, 0, number, factor, bytes of the payload; little-endian."""
_COUNT = np.dtype("<u4")
UPDATE, ENDED = 1, 2
"""Kinds: an update; the sender makes no more steps until all workers are drained."""


@dataclass(frozen=True)
class Message:
    """A worker's update."""

    sender: int
    number: int
    """The number of the sender's steps before it."""
    factor: float
    """What the update is multiplied by when it is applied: minus the learning rate of the sender's step, over
    the number of workers if updates are averaged."""
    known: tuple[int, ...]
    """By worker, how many of its updates are in the weights at which the gradient was computed."""
    payload: Payload

    @property
    def nbytes(self) -> int:
        """Number of bytes on the wire."""
        return HEAD.size + _COUNT.itemsize * len(self.known) + int(self.payload.size)


def written(message: Message) -> Payload:
    """The bytes of a message."""
    head = HEAD.pack(UPDATE, 0, message.number, message.factor, message.payload.size)
    before = np.frombuffer(head + np.array(message.known, _COUNT).tobytes(), np.uint8)
    return np.concatenate([before, message.payload])


def ended(number: int) -> Payload:
    """The bytes of a message that says that its sender makes no step from this one on."""
    return np.frombuffer(HEAD.pack(ENDED, 0, number, 0.0, 0), np.uint8)


def read(sender: int, arrived: Payload, workers: int) -> Message | int:
    """An update; or the step before which its sender ends. Raises CorruptMessage: the bytes are neither."""
    kind, nothing, number, factor, size = HEAD.unpack(arrived[: HEAD.size].tobytes().ljust(HEAD.size, b"\0"))
    expected = HEAD.size + (_COUNT.itemsize * workers if kind == UPDATE else 0) + size
    if kind not in (UPDATE, ENDED) or nothing or arrived.size != expected or not np.isfinite(factor):
        raise CorruptMessage(
            f"what worker {sender} sent is no message: kind {kind}, factor {factor}, {arrived.size} bytes"
        )
    if kind == ENDED:
        return int(number)
    behind = HEAD.size + _COUNT.itemsize * workers
    counts = arrived[HEAD.size : behind].view(_COUNT).tolist()
    return Message(sender, number, factor, tuple(counts), arrived[behind:])


_TAG = "update"


class Mail:
    """Counts steps over the whole run. Between two drains, every worker makes the same number of them."""

    def __init__(self, carrier: Carrier, *, most_behind: int, waits: bool) -> None:
        """Takes part; `begin` follows.

        A worker may be `most_behind` steps ahead of what it has received from any other one. Simulated
        workers never wait (`waits`): others must make their steps first.
        """
        self._carrier, self._most_behind, self._waits = carrier, most_behind, waits
        self._arrivals = Arrivals(carrier, _TAG)
        self._arrived = [0] * carrier.workers
        """By sender, the number of its next message."""
        self._kept: list[deque[Message]] = [deque() for _ in range(carrier.workers)]
        self._ended = [0] * carrier.workers
        """By sender, the step before which it last said that it stops until a drain."""
        self._first = 0
        self._schedule: Schedule | None = None

    def begin(self, step: int, schedule: Schedule | None) -> None:
        """Called when all workers are drained and continue with this step; senders may already be further.

        The schedule says from here on what is applied when; without it, whatever has arrived.
        """
        self._first, self._schedule = step, schedule
        self._arrived = [max(arrival, step) for arrival in self._arrived]

    def send(self, message: Message) -> None:
        """Starts to send a message to all other workers; does not wait."""
        self._send_to_all(written(message))

    def end(self, step: int) -> None:
        """Tells the others that this worker makes no step from this one on until all are drained."""
        if self._schedule is not None:  # nobody else needs to know
            self._send_to_all(ended(step))

    def _send_to_all(self, payload: Payload) -> None:
        for other in self._carrier.others:
            self._carrier.send(other, _TAG, payload)

    def receive(self, step: int) -> list[Message] | None:
        """The messages that this worker must apply before a step; `step` is the number of its steps before.

        Returns:
            Those of each sender in order; None if simulated workers must make steps first.

        Raises:
            PeerLost: another worker is gone.
            CorruptMessage: what arrived is no message.
        """
        return self._wait(lambda: self._bounds(step))

    def drain(self, step: int) -> list[Message] | None:
        """As `receive`, of everything that was sent to this worker before a step."""
        everything = [step] * self._carrier.workers
        return self._wait(lambda: (everything, everything))

    def _bounds(self, step: int) -> tuple[Sequence[int], Sequence[int]]:
        """By sender, the numbers before which messages must be here, and are taken, before a step."""
        if self._schedule is None:
            return [step - self._most_behind] * self._carrier.workers, self._arrived
        received = self._schedule.received(self._carrier.rank, step - self._first)
        due = [self._first + number for number in received]
        # An end before this schedule is that of an earlier drain.
        ends = zip(due, self._ended, strict=True)
        due = [min(number, end) if end > self._first else number for number, end in ends]
        return due, due

    def _wait(self, bounds: Callable[[], tuple[Sequence[int], Sequence[int]]]) -> list[Message] | None:
        began = perf_counter()
        self._sort(0)
        while (message := self._due(*bounds())) is None and self._waits:
            self._sort(None)
        if self._waits:
            RECORDER.add("wait", "compute", began, perf_counter())
        return message

    def _due(self, needed: Sequence[int], taken: Sequence[int]) -> list[Message] | None:
        for problem in self._arrivals.lost.values():
            # A worker that refuses its gradient says so before it ends.
            refusals = [message for message in self._take(self._arrived) if is_refusal(message.payload)]
            if not refusals:
                raise problem
            return refusals[:1]
        here = all(self._arrived[sender] >= needed[sender] for sender in self._carrier.others)
        return self._take(taken) if here else None

    def _take(self, up_to: Sequence[int]) -> list[Message]:
        """Takes out the messages before these numbers; by sender."""
        taken = []
        for kept, number in zip(self._kept, up_to, strict=True):
            while kept and kept[0].number < number:
                taken.append(kept.popleft())
        return taken

    def _sort(self, wait_s: float | None) -> None:
        for sender, arrived in self._arrivals.take(wait_s):
            message = read(sender, arrived, self._carrier.workers)
            if isinstance(message, Message):
                self._arrived[sender] = message.number + 1
                self._kept[sender].append(message)
            else:
                self._ended[sender] = message
