"""Rounds of messages, with the same code for real and for simulated workers.

Every worker runs the same generator, its pattern's. What it yields is sent, and what it gets back has
arrived; a round takes one delay of the link. `PendingRounds` runs a generator over a carrier, and goes on
when the messages of a round are here, so that several exchanges may be under way at once.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Protocol

from ..bucket.ledger import Traffic
from ..ops.parts import PartTally
from ..spans import Interval
from .carrier import Payload, Round


@dataclass
class ExchangeRecord:
    """What a worker compressed, sent and decoded in one exchange, counted as it happens."""

    traffic: Traffic
    """What the worker sends and receives."""
    columns: list[Iterable[PartTally]] = field(default_factory=list)
    """What it sent of its gradient, by message; a parameter may occur in more than one."""
    sum_columns: list[Iterable[PartTally]] = field(default_factory=list)
    """What it sent of sums that it reduced for all; what these leave out is a residual, too."""
    refused: list[Callable[[], list[int]]] = field(default_factory=list)
    """For messages of fixed size: see `Outgoing.refused`; ordinals of the parameters of the exchange."""
    compressing: list[Interval] = field(default_factory=list)
    decoding: list[Interval] = field(default_factory=list)
    waited_s: float = 0.0
    """While messages were under way, where a worker waits for them."""

    @property
    def tallies(self) -> list[PartTally]:
        """The tallies of all messages."""
        return [tally for column in self.columns for tally in column]


class RoundCarrier(Protocol):
    """What exchanges the messages of rounds: a `Carrier`, or torch's collectives."""

    rank: int
    workers: int

    def exchange(self, this: Round, tag: str) -> Sequence[Future[Payload]]:
        """Sends one worker's messages of a round; futures of those that arrive, by `senders`."""


Payloads = Mapping[int, Payload]
"""What all workers have at the end of an exchange, by worker or by shard of the gradient."""
Rounds = Generator[Round, Sequence[Payload], Payloads]
"""A worker's side of an exchange: yields rounds, and gets the payloads that arrived, by `senders`."""


class PendingRounds:
    """The rounds of one worker, under way over a carrier.

    Attributes:
        payloads: what the rounds return; PeerLost or CorruptMessage where they cannot be finished.
        record: of the exchange.
    """

    def __init__(
        self,
        rounds: Rounds,
        record: ExchangeRecord,
        carrier: RoundCarrier,
        tag: str,
        schedule: Callable[[Callable[[], None]], object],
    ) -> None:
        """Prepares an exchange, under a tag that no other one under way has; `begin` starts it.

        `schedule` gets a call that goes on with the rounds, once the messages of a round are here. It is
        called in the carrier's thread and must not wait: it passes the call to another thread.
        """
        self.payloads: Future[Payloads] = Future()
        self.record = record
        self._rounds, self._carrier, self._tag, self._schedule = rounds, carrier, tag, schedule

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
        carrier, traffic = self._carrier, self.record.traffic
        if this.all_reduced_bytes is not None:
            traffic.sums.add_all_reduce(this.all_reduced_bytes, carrier.rank, carrier.workers)
        else:
            for payload, receivers in this.sends:
                traffic.count_sent(carrier.rank, payload.size, receivers)
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
