"""One exchange of a worker: a pattern's rounds over a carrier, and what they come to.

The code is the same for real and for simulated workers, and for buckets of gradients and local steps. The
rounds go on when the messages of one are here, so that several exchanges may be under way at once.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Lock
from time import perf_counter
from typing import Protocol

from torch import Tensor

from ..errors import CorruptMessage
from .carrier import Payload, Round
from .patterns.base import ExchangeRecord, Pattern, Payloads, RefusedUpdate, Rounds


class RoundCarrier(Protocol):
    """What exchanges the messages of rounds: a `Carrier`, or torch's collectives."""

    rank: int
    workers: int

    def exchange(self, this: Round, tag: str) -> Sequence[Future[Payload]]:
        """Sends one worker's messages of a round; futures of those that arrive, by `senders`."""


class Exchange:
    """A worker's exchange, from compressing (`start`) to the sum of all workers' updates (`assemble`).

    Attributes:
        pattern: whose rounds it runs.
        payloads: what the rounds return; PeerLost or CorruptMessage where they cannot be finished.
        record: what it is about, and what was compressed, sent and decoded so far.
    """

    _rounds: Rounds

    def __init__(
        self,
        pattern: Pattern,
        record: ExchangeRecord,
        carrier: RoundCarrier,
        tag: str,
        schedule: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """Prepares an exchange, whose tag no other one under way has.

        `schedule` gets a call that goes on with the rounds, once the messages of a round are here. It is
        called where the last of them arrived, mostly in the carrier's thread, and must not wait: it passes
        the call to another thread. By default, the call waits for `go_on`.
        """
        self.pattern, self.record, self.payloads = pattern, record, Future[Payloads]()
        self._carrier, self._tag = carrier, tag
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._schedule = schedule or self._calls.put

    def start(self, tensors: Sequence[Tensor]) -> None:
        """Compresses in this thread, and sends the first messages; raises what compressing raises.

        Tensors are flat and contiguous, one per parameter; the caller drops its references.
        """
        self._rounds = self.pattern.rounds(tensors, self.record)
        del tensors
        self._advance(None)

    def go_on(self, *, waits: bool = True) -> tuple[float, float]:
        """Goes on with the next round, in this thread; returns from when to when it waited for that.

        Raises queue.Empty if messages are not here, and it is not to wait.
        """
        began = perf_counter()
        call = self._calls.get(block=waits)
        ended = perf_counter()
        call()
        return began, ended

    def refusals(self, names: Sequence[str]) -> list[RefusedUpdate]:
        """Which workers had no update, because of one of the parameters named.

        Raises PeerLost or CorruptMessage.
        """
        refusals = self.pattern.refusals(self.payloads.result())
        for refusal in refusals:
            if refusal.ordinal >= len(names) or not 0 <= refusal.rank < self._carrier.workers:
                raise CorruptMessage(f"a refusal of parameter {refusal.ordinal} by worker {refusal.rank}")
        return refusals

    def assemble(self, total: Tensor | None = None) -> Tensor:
        """The mean (or sum) of all workers' updates, once; see `Pattern.assemble`."""
        began, payloads = perf_counter(), self.payloads.result()
        total = self.pattern.assemble(payloads, total)
        payloads.clear()  # this may live until the end of the backward pass
        self.record.decoding.append((began, perf_counter()))
        return total

    def _advance(self, received: Sequence[Payload] | None) -> None:
        """Goes on to the next round, or to the end."""
        try:
            this = self._rounds.send(received)  # type: ignore[arg-type]  # None begins a generator
        except StopIteration as end:
            self.payloads.set_result(end.value)
            return
        carrier, traffic = self._carrier, self.record.traffic
        if this.all_reduced_bytes is not None:
            traffic.sums.add_all_reduce(this.all_reduced_bytes, carrier.rank, carrier.workers)
        else:
            for payload, receivers in this.sends:
                traffic.count_sent(payload.size, receivers)
        arriving = carrier.exchange(this, self._tag)
        go_on = partial(self._go_on, arriving, counts=this.all_reduced_bytes is None)
        when_done(arriving, lambda: self._schedule(go_on))

    def _go_on(self, arrived: Sequence["Future[Payload]"], *, counts: bool) -> None:
        """Goes on when all of a round's messages are here; ends where one never will be."""
        try:
            for message in arrived:
                if message.done():
                    message.result()  # raises what is known, without waiting for others
            payloads = [message.result() for message in arrived]
            if counts:
                self.record.traffic.sums.received_bytes += sum(payload.size for payload in payloads)
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
