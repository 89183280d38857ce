"""A synchronization in rounds of messages, with the same code for real and for simulated workers.

Every worker runs the same generator. In each round, what it yields is sent, and what it gets back has
arrived. A `Runner` runs the rounds over carriers, between processes or between the workers of one process.
Bytes and results are the same. A round takes one delay of the link.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

from .carrier import Payload
from .traffic import Head, Known


@dataclass(frozen=True)
class Sending:
    """What one worker sends in one round."""

    to: Mapping[int, Payload] = field(default_factory=dict)
    """By receiver; what is empty does not arrive."""
    to_all: Payload | None = None
    """The same to every other worker, in place of `to`."""
    singly: bool = False
    """Whether this is a round of `to`, on all workers: some may have nothing for anybody."""
    elements: int = 0
    """Elements of a gradient in it."""
    paper_bits: int = 0
    """Value bits in it."""
    refused: int | None = None
    """Says that there is no update: the ordinal of the parameter whose gradient was not finite."""

    def head(self) -> Head:
        """The numbers that go before it."""
        single = [payload.size for payload in self.to.values() if payload.size]
        return Head(
            to_all=-1 if self.to_all is None else self.to_all.size,
            elements=self.elements,
            paper_bits=self.paper_bits,
            refused=-1 if self.refused is None else self.refused,
            single_bytes=sum(single),
            single_messages=len(single),
        )


@dataclass(frozen=True)
class Passing:
    """What one worker passes on in one round, and from whom it receives. No other worker takes part."""

    receiver: int
    sender: int
    """Who passes something on to this worker, with as many bytes told."""
    payload: Payload
    told_bytes: int = 0
    """With which the payload begins, of numbers that are no part of the message itself."""


Received = Mapping[int, Payload]
"""What arrived at a worker in one round, by sender; what it sent to all is among it."""
Move = Sending | Passing | Known
"""What a worker does next; in one round all workers do the same."""
Result = dict[int, Payload]
"""Payloads that are the same on every worker, by worker or by part of the gradient."""
Rounds = Generator[Move, Received, Result]
"""A worker's side of a synchronization. All workers have equally many rounds."""


class Participant:
    """One worker's generator, which has run as far as its next move: None at its end, when all agree."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.agreed: Result = {}
        self.move: Move | None = next(rounds)

    def receive(self, received: Received) -> None:
        """Goes on to the next move, or to the end."""
        try:
            self.move = self._rounds.send(received)
        except StopIteration as end:
            self.move, self.agreed = None, end.value
