"""Delivery of one worker's messages: sends them to all others, and keeps what arrives until it is due.

Workers apply what has arrived, or exactly what a schedule says. Simulated workers have a schedule, and a
carrier in memory. A schedule is a made-up timing, the same wherever it is computed; of K workers, a row has a
value for every worker, or for every link, at one step. A message has a head of 32 bytes, then 4 bytes per
worker that say how many of its updates the sender had applied, then the compressor's payload
(docs/reference/messages.md).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from struct import Struct
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Arrivals, Carrier, Payload
from taugrad.compressors.spans import RECORDER
from taugrad.compressors.wire.message import is_refusal

from ...spec.synchronization import AsyncSync


class Schedule:
    """Which messages each worker has applied before each of its steps, since all of them were drained.

    A worker begins a step when it has finished the one before and is not too far ahead. Its message leaves at
    the end of the step, and arrives after a delay, but never before an earlier message of the same sender.
    What has arrived when a step begins, or arrives at the same moment, is applied before the step. So workers
    of equal speed and messages without delay give synchronous training.

    Everything is a function of the mode and of the numbers of steps; no call depends on earlier calls.
    """

    def __init__(self, mode: AsyncSync, workers: int, first: int) -> None:
        """Begins at time 0, when all workers have applied everything.

        `first` are every worker's steps before this in the whole run; delays are drawn from it.
        """
        self._mode, self._first = mode, first
        self._times = np.array(mode.step_times or [1.0] * workers)
        self._starts: list[NDArray[np.float64]] = []
        """float64 [K] a row: when each worker begins the step."""
        self._arrivals: list[NDArray[np.float64]] = []
        """float64 [K, K] a row: when the step's message from row arrives at column."""

    def received(self, worker: int, step: int) -> list[int]:
        """By sender, how many of its messages a worker has applied before a step of its own.

        Steps and messages count from the schedule's beginning. A sender that ends earlier counts as if it
        continued.
        """
        self._extend(step)
        start = self._starts[step][worker]
        while self._arrivals[-1][:, worker].min() <= start:
            self._extend(len(self._starts))
        return [
            step
            if sender == worker
            else bisect_right(self._arrivals, start, key=itemgetter((sender, worker)))
            for sender in range(len(self._times))
        ]

    def _extend(self, step: int) -> None:
        while len(self._starts) <= step:
            self._add_row()

    def _add_row(self) -> None:
        step, behind = len(self._starts), self._mode.most_behind
        starts = np.zeros_like(self._times)
        if step:
            starts = self._starts[-1] + self._times
        if step > behind:
            needed = self._arrivals[step - behind - 1].copy()
            np.fill_diagonal(needed, 0)  # a worker waits for the others only
            starts = np.maximum(starts, needed.max(axis=0))
        arrivals = (starts + self._times)[:, None] + self._delays(step)
        if step:
            arrivals = np.maximum(arrivals, self._arrivals[-1])
        self._starts.append(starts)
        self._arrivals.append(arrivals)

    def _delays(self, step: int) -> NDArray[np.float64]:
        """float64 [K, K], of one step's messages from row to column."""
        links = (len(self._times), len(self._times))
        least, most = self._mode.delay
        if least == most:
            return np.full(links, least)
        return np.random.default_rng([self._mode.schedule_seed, self._first + step]).uniform(
            least, most, links
        )


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


class Delivery:
    """Counts steps over the whole run. Between two drains, every worker makes the same number of them."""

    def __init__(self, carrier: Carrier, *, most_behind: int) -> None:
        """Takes part; `begin` follows.

        A worker may be `most_behind` steps ahead of what it has received from any other one.
        """
        self._carrier, self._most_behind = carrier, most_behind
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

    def receive(self, step: int, *, drains: bool = False) -> list[Message] | None:
        """Those of each sender, in order, that this worker must apply before a step, counted from 0.

        `drains`: everything that was sent to it before the step. None if simulated workers must make steps
        first. Raises PeerLost: another worker is gone; CorruptMessage: what arrived is no message.
        """
        began = perf_counter()
        self._sort(0)
        while (messages := self._due(step, drains=drains)) is None and self._carrier.waits:
            self._sort(None)
        if self._carrier.waits:
            RECORDER.add("wait", "compute", began, perf_counter())
        return messages

    def _due(self, step: int, *, drains: bool) -> list[Message] | None:
        for problem in self._arrivals.lost.values():
            # A worker that refuses its gradient says so before it ends.
            refusals = [message for message in self._take(self._arrived) if is_refusal(message.payload)]
            if not refusals:
                raise problem
            return refusals[:1]
        needed = taken = [step] * self._carrier.workers
        if not drains:
            needed, taken = self._bounds(step)
        here = all(self._arrived[sender] >= needed[sender] for sender in self._carrier.others)
        return self._take(taken) if here else None

    def _bounds(self, step: int) -> tuple[list[int], list[int]]:
        """By sender, the numbers before which messages must be here, and are taken, before a step."""
        if self._schedule is None:
            return [step - self._most_behind] * self._carrier.workers, self._arrived
        received = self._schedule.received(self._carrier.rank, step - self._first)
        due = [self._first + number for number in received]
        # An end before this schedule is that of an earlier drain.
        ends = zip(due, self._ended, strict=True)
        due = [min(number, end) if end > self._first else number for number, end in ends]
        return due, due

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
