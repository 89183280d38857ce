"""Rounds of messages: what a pattern yields and gets back, and what is counted on the way.

Every worker runs the same generator, its pattern's. What it yields is sent, and what it gets back has
arrived; a round takes one delay of the link. `Exchange` (`exchange/exchange.py`) runs it.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

from ..bucket.ledger import Step, Traffic
from ..ops.parts import PartTally, by_parameter
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
    def layers(self) -> list[PartTally]:
        """What it sent of its gradient, by parameter."""
        tallies = [tally for column in self.columns for tally in column]
        return tallies if len(self.columns) == 1 else by_parameter(tallies)

    def count(self, step: Step, traffic: Traffic) -> None:
        """Adds what was sent and received to a step and to a worker's traffic."""
        traffic.add(self.traffic)
        step.add(self.traffic.sums)


class RoundCarrier(Protocol):
    """What exchanges the messages of rounds: a `Carrier`, or torch's collectives."""

    rank: int
    workers: int

    def exchange(self, this: Round, tag: str) -> Sequence[Future[Payload]]:
        """Sends one worker's messages of a round; futures of those that arrive, by `senders`."""


Payloads = dict[int, Payload]
"""What all workers have at the end of an exchange, by worker or by shard of the gradient."""
Rounds = Generator[Round, Sequence[Payload], Payloads]
"""A worker's side of an exchange: yields rounds, and gets the payloads that arrived, by `senders`."""
