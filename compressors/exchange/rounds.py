"""A synchronization in rounds of messages, with the same code for real and for simulated workers.

Every worker runs the same generator. In each round, what it yields is sent, and what it gets back has
arrived. A `Runner` runs the rounds over carriers, between processes or between the workers of one process.
Bytes and results are the same. A round takes one delay of the link.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field

from .carrier import Payload
from .traffic import NUMBER_BYTES, Head, Known


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
    """What one worker passes on in one round, and from whom it receives. No other worker takes part.

    `note` goes before the payload, to the receiver only.
    """

    receiver: int
    sender: int
    """Who passes something on to this worker, with as many numbers in its note."""
    payload: Payload
    note: Sequence[int] = ()

    @property
    def told_bytes(self) -> int:
        """Of the numbers that go before the payload."""
        return NUMBER_BYTES * len(self.note)


Received = Mapping[int, Payload]
"""What arrived at a worker in one round, by sender; what it sent to all is among it."""


class Passed(dict[int, Payload]):
    """What arrived in a round of `Passing`: the payload, by its sender.

    Attributes:
        note: the numbers that came with it.
    """

    def __init__(self, sender: int, payload: Payload, note: Sequence[int]) -> None:
        super().__init__({sender: payload})
        self.note = list(note)


Move = Sending | Passing | Known
"""What a worker does next; in one round all workers do the same."""
Result = dict[int, Payload]
"""Payloads that are the same on every worker, by worker or by part of the gradient."""
Rounds = Generator[Move, Received, Result]
"""A worker's side of a synchronization. All workers have equally many rounds."""


class Participant:
    """One worker's generator, which has run as far as its next move."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.move: Move | None = None
        """What it wants to do now; None at its end."""
        self.agreed: Result = {}
        """What it came to, at its end."""
        self._advance(None)

    def receive(self, received: Received) -> None:
        """Goes on to the next move, or to the end."""
        self._advance(received)

    def _advance(self, received: Received | None) -> None:
        try:
            self.move = next(self._rounds) if received is None else self._rounds.send(received)
        except StopIteration as end:
            self.move, self.agreed = None, end.value
