"""Rounds of messages, with the same code for real and for simulated workers.

Every worker runs the same generator, its pattern's. What it yields is sent, and what it gets back has
arrived; a round takes one delay of the link. `PendingRounds` runs a generator over a carrier, and goes on
when the messages of a round are here, so that several exchanges may be under way at once. A `Runner` has the
carriers of a process's workers. Between the simulated workers of one process, bytes and results are the same
as between processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Lock
from time import perf_counter
from weakref import finalize

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..bucket.layout import PartTally
from ..bucket.ledger import Traffic
from ..errors import reaching
from ..spans import RECORDER, Interval
from .addresses import transport_of
from .carrier import Carrier, Payload, in_memory
from .tensors import broadcast


@dataclass(frozen=True)
class Round:
    """What one worker sends in one round, and from whom it receives; each sends what another receives."""

    sends: Sequence[tuple[Payload, Sequence[int]]] = ()
    """Payloads, and the ranks of their receivers."""
    senders: Sequence[int] = ()
    """For each payload that arrives, its sender's rank; those of one sender are in the order of sending."""
    all_reduced_bytes: int | None = None
    """In place of the payloads, an all-reduce of so many bytes is counted, which this round simulates."""


@dataclass
class Work:
    """What a worker compressed and decoded in the rounds of one exchange; patterns fill it in."""

    tallies: list[PartTally] = field(default_factory=list)
    """What it sent of its own gradient; a parameter may occur more than once."""
    paper_bits: int = 0
    """Value bits that it sent, also of sums."""
    compressing: list[Interval] = field(default_factory=list)
    decoding: list[Interval] = field(default_factory=list)


Payloads = Mapping[int, Payload]
"""What all workers have at the end of an exchange, by worker or by shard of the gradient."""
Rounds = Generator[Round, Sequence[Payload], Payloads]
"""A worker's side of an exchange: yields rounds, and gets the payloads that arrived, by `senders`."""


class PendingRounds:
    """The rounds of one worker, under way over a carrier.

    Attributes:
        payloads: what the rounds return; PeerLost or CorruptMessage where they cannot be finished.
        work: what the rounds have noted so far.
        under_way: when messages of each round were, in seconds of `perf_counter`.
    """

    def __init__(
        self,
        rounds: Rounds,
        work: Work,
        carrier: Carrier,
        tag: str,
        traffic: Traffic,
        schedule: Callable[[Callable[[], None]], object],
    ) -> None:
        """Prepares an exchange; `begin` starts it.

        Args:
            rounds: the worker's side.
            work: where it notes what it compressed.
            carrier: of the worker.
            tag: of all messages; no other exchange under way has it.
            traffic: where messages are counted.
            schedule: gets a call that goes on with the rounds, once the messages of a round are here. It is
                called in the carrier's thread and must not wait: it passes the call to another thread.
        """
        self.payloads: Future[Payloads] = Future()
        self.work = work
        self.under_way: list[Interval] = []
        self._rounds, self._carrier, self._tag = rounds, carrier, tag
        self._traffic, self._schedule = traffic, schedule

    def begin(self) -> None:
        """Compresses in this thread, and sends the first round's messages; raises what compressing raises."""
        self._advance(None)

    def _advance(self, received: Sequence[Payload] | None) -> None:
        """Goes on to the next round, or to the end."""
        try:
            this = self._rounds.send(received)  # type: ignore[arg-type]  # None begins a generator
        except StopIteration as end:
            self.payloads.set_result(end.value)
            return
        carrier, sums = self._carrier, self._traffic.sums
        sent_at = perf_counter()
        for payload, receivers in this.sends:
            for receiver in receivers:
                carrier.send(receiver, self._tag, payload)
            if this.all_reduced_bytes is None:
                self._traffic.count_sent(carrier.rank, payload.size, receivers)
        if this.all_reduced_bytes is not None:
            sums.add_all_reduce(this.all_reduced_bytes, carrier.rank, carrier.workers)
        arriving = [carrier.receive(sender, self._tag) for sender in this.senders]
        go_on = partial(self._go_on, arriving, sent_at, counts=this.all_reduced_bytes is None)
        when_done(arriving, lambda: self._schedule(go_on))

    def _go_on(self, arrived: Sequence["Future[Payload]"], sent_at: float, *, counts: bool) -> None:
        """Goes on when all of a round's messages are here, or one never will be."""
        try:
            payloads = [message.result() for message in arrived]
            self.under_way.append((sent_at, perf_counter()))
            if counts:
                self._traffic.sums.received_bytes += sum(payload.size for payload in payloads)
            self._advance(payloads)
        except Exception as problem:
            self.payloads.set_exception(problem)


def when_done(futures: Sequence["Future[Payload]"], call: Callable[[], object]) -> None:
    """Calls a function once: when all futures have results, or one has an exception."""
    left, lock = len(futures), Lock()

    def note(future: Future[Payload]) -> None:
        nonlocal left
        with lock:
            before, left = left, 0 if future.exception() is not None else max(0, left - 1)
        if before and not left:
            call()

    if not futures:
        call()
    for future in futures:
        future.add_done_callback(note)


class Runner(ABC):
    """The carriers of this process's workers, and what all workers do together besides exchanges.

    Attributes:
        carriers: of the workers in this process, by rank.
        ranks: theirs, ascending.
        workers: how many there are everywhere.
        waits: whether there are others to wait for; simulated workers never do.
    """

    def __init__(self, carriers: Sequence[Carrier]) -> None:
        self.carriers = carriers
        self.ranks: Sequence[int] = [carrier.rank for carrier in carriers]
        self.workers = carriers[0].workers
        self.waits = len(carriers) < self.workers

    def finish(
        self, pending: Sequence[PendingRounds], calls: "SimpleQueue[Callable[[], None]]"
    ) -> tuple[Payloads, float]:
        """Runs exchanges of the workers here to their ends, in this thread.

        Args:
            pending: begun, one a rank here.
            calls: their `schedule` puts calls there.

        Returns:
            What they return, and the seconds in which this thread waited for other processes.

        Raises:
            PeerLost: another worker is gone, or has been silent for too long.
            CorruptMessage: what arrived is no message of a round.
        """
        waited_s, left = 0.0, list(pending)
        while left := [exchange for exchange in left if not exchange.payloads.done()]:
            began = perf_counter()
            call = calls.get(block=self.waits)
            if self.waits:
                ended = perf_counter()
                waited_s += ended - began
                RECORDER.add("exchange", "wire", began, ended, "round")
                RECORDER.add("wait", "compute", began, ended)
            call()
            for exchange in left:
                if exchange.payloads.done():
                    exchange.payloads.result()  # the others may wait for one that failed
        return pending[0].payloads.result(), waited_s

    @abstractmethod
    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Worker 0's tensors to all, in place."""

    @abstractmethod
    def gather(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of all workers: [workers, ...] from [workers here, ...]; all must call this together."""


class ProcessRunner(Runner):
    """This process's worker, among those of a process group."""

    def __init__(
        self, device: torch.device, carrier: Carrier, group: dist.ProcessGroup | None = None
    ) -> None:
        """Joins a group's workers, by default all; the carrier is closed with this object."""
        super().__init__([carrier])
        finalize(self, carrier.close)
        self._group, self._device = group, transport_of(group, device)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        with _waiting("buffers"):
            broadcast(tensors, self._group, self._device)

    def gather(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        return gather_rows(own[0], self._device, self._group)


@contextmanager
def _waiting(about: str) -> Iterator[None]:
    """Records what goes on inside as waiting for the others."""
    began = perf_counter()
    with reaching():
        yield
    ended = perf_counter()
    RECORDER.add("exchange", "wire", began, ended, about)
    RECORDER.add("wait", "compute", began, ended)


def gather_rows(
    own: NDArray[np.float64], device: torch.device, group: dist.ProcessGroup | None = None
) -> NDArray[np.float64]:
    """The rows [...] of all processes of a group, by default all: [processes, ...]; all call it together.

    Rows are exact for integers up to 2^53. Raises PeerLost.
    """
    mine = torch.from_numpy(np.ascontiguousarray(own)).to(transport_of(group, device))
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with _waiting("notes"):
        dist.all_gather(rows, mine, group=group)
    return np.stack([row.cpu().numpy() for row in rows])


class SimulatedRunner(Runner):
    """All workers, over a carrier in memory (Anoosheh, section 2.2)."""

    def __init__(self, workers: int) -> None:
        super().__init__(in_memory(workers))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to do: whoever runs the workers keeps worker 0's."""

    def gather(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        return own
