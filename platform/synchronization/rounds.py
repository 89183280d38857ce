"""A synchronization in rounds of messages, with the same code for real and for simulated workers.

Every worker runs the same generator. In each round, what it yields is sent, and what it gets back has
arrived. A `Crew` runs the rounds over carriers, between processes (`processes.py`) or between the workers of
one process (`simulation.py`). Bytes and results are the same. A round takes one delay of the link.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.bucket.ledger import BASELINE_BYTES
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Carrier, Payload
from taugrad.compressors.exchange.sites import Sites

from .links import Links

NUMBER_BYTES = 8
_TAG = "round"


class Head(NamedTuple):
    """The numbers with which a worker's message to every other one begins."""

    to_all: int
    """Bytes of what goes to all; -1 for nothing."""
    elements: int
    paper_bits: int
    refused: int
    """Which parameter was not finite; -1 for none."""
    single_bytes: int
    """Bytes of what goes to single workers."""
    single_messages: int
    """How many messages that is."""


HEAD = np.dtype([(name, np.int64) for name in Head._fields])
"""A `Head` in an array."""
Heads = NDArray[np.void]
"""HEAD [workers], by rank."""


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


@dataclass(frozen=True)
class Known:
    """What all workers know after rounds in which they only passed on. Nothing is sent."""

    heads: Heads
    """Of all these rounds together; nothing in them went to all."""
    told_bytes: int
    """Of the numbers that all workers told in these rounds."""


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
Agreed = dict[int, Payload]
"""Payloads that are the same on every worker, by worker or by part of the gradient."""
Rounds = Generator[Move, Received, Agreed]
"""A worker's side of a synchronization. All workers have equally many rounds."""


class RefusedUpdate(Exception):
    """A gradient was not finite; all workers learn of it in the same round.

    Attributes:
        rank: the first worker that met it.
        ordinal: of its first parameter affected.
    """

    def __init__(self, rank: int, ordinal: int) -> None:
        self.rank, self.ordinal = rank, ordinal
        super().__init__(f"parameter {ordinal} of worker {rank} is not finite")


class Side:
    """One worker's generator, which has run as far as its next move."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self.move: Move | None = None
        """What it wants to do now; None at its end."""
        self.agreed: Agreed = {}
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


_NUMBERS = ("wire_bytes", "elements", "paper_bits", "received_bytes", "messages")
_LINKS = ("link_bytes", "link_messages", "link_told")


@dataclass
class Traffic:
    """What went between workers."""

    workers: int
    wire_bytes: int = 0
    """Handed to the transport by all workers: what goes to all counts once, the numbers told before a round
    included."""
    elements: int = 0
    paper_bits: int = 0
    received_bytes: int = 0
    """Arrived at all workers together, the numbers told included."""
    messages: int = 0
    """Over all links, the numbers told not included."""
    link_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64 [workers, workers], bytes of messages from row to column. What goes between two workers of other
    processes, and not to all, is not known here and not in it."""
    link_messages: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64 [workers, workers], how many messages; likewise."""
    link_told: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    """int64 [workers, workers], bytes of the numbers told with rounds; those told to one alone likewise."""

    def __post_init__(self) -> None:
        if not self.link_bytes.size:
            for name in _LINKS:
                setattr(self, name, np.zeros((self.workers, self.workers), np.int64))

    def add(self, other: "Traffic") -> None:
        """Adds another's sums to these."""
        self.wire_bytes += other.wire_bytes
        self.elements += other.elements
        self.paper_bits += other.paper_bits
        self.received_bytes += other.received_bytes
        self.messages += other.messages
        self.link_bytes += other.link_bytes
        self.link_messages += other.link_messages
        self.link_told += other.link_told

    def state_dict(self) -> dict[str, Any]:
        """The sums as numbers and tensors."""
        return {
            "numbers": [getattr(self, name) for name in _NUMBERS],
            **{name: torch.from_numpy(getattr(self, name).copy()) for name in _LINKS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave; raises ValueError where it is of other workers."""
        links = [state[name].numpy().astype(np.int64) for name in _LINKS]
        if any(each.shape != (self.workers, self.workers) for each in links):
            raise ValueError(f"the links of {len(links[0])} workers, this run has {self.workers}")
        for name, number in zip(_NUMBERS, state["numbers"], strict=True):
            setattr(self, name, int(number))
        self.link_bytes, self.link_messages, self.link_told = links

    def count(self, heads: Heads, sizes: NDArray[np.int64] | None) -> None:
        """Counts one round; raises RefusedUpdate where a worker has no update.

        Args:
            heads: of all workers.
            sizes: int64 [workers, workers], bytes from row to column with 0 for nothing and for what is not
                known here; None where nobody sends anything but to all.
        """
        others = self.workers - 1
        told = HEAD.itemsize
        self.wire_bytes += told * self.workers
        self.link_told += told * ~np.eye(self.workers, dtype=bool)
        self.received_bytes += told * self.workers * others
        to_all = heads["to_all"]
        self.wire_bytes += int(to_all[to_all > 0].sum())
        self._count_to_all(heads, to_all)
        if sizes is not None:
            self.wire_bytes += int(heads["single_bytes"].sum())
            self.received_bytes += int(heads["single_bytes"].sum())
            self.messages += int(heads["single_messages"].sum())
            self.link_bytes += sizes
            self.link_messages += sizes > 0
        _look_for_refusals(heads)

    def count_passed(self, sender: int, receiver: int, size: int, told: int) -> None:
        """Notes what was passed on over one link; `count_known` counts what all workers passed on."""
        self.link_bytes[sender, receiver] += size
        self.link_messages[sender, receiver] += size > 0
        self.link_told[sender, receiver] += told

    def count_known(self, known: Known) -> None:
        """Counts rounds in which workers only passed on; raises as `count` does."""
        sent = int(known.heads["single_bytes"].sum()) + known.told_bytes
        self.wire_bytes += sent
        self.received_bytes += sent
        self.elements += int(known.heads["elements"].sum())
        self.paper_bits += int(known.heads["paper_bits"].sum())
        self.messages += int(known.heads["single_messages"].sum())
        _look_for_refusals(known.heads)

    def count_gathered(self, heads: Heads, lengths: NDArray[np.int64], sites: Sites) -> None:
        """Counts a round in which all send to all, as `compressors.exchange.buckets` carries it out.

        There a worker without an update sends a message that says so; raises as `count` does.

        Args:
            heads: of all workers.
            lengths: int64 [workers], of the messages as they go.
            sites: where the workers are, which says over which links messages go.
        """
        self.wire_bytes += int(lengths @ sites.times_handed_over)
        self._count_numbers(heads)
        self._count_links(sites.over_links(lengths), sites.over_links(np.ones_like(lengths)))
        _look_for_refusals(heads)

    def count_all_reduce(self, heads: Heads) -> None:
        """Counts a round in which whole gradients go to all, as the DDP hook leaves them to all-reduce.

        What that receives is counted by the formula of a ring; raises as `count` does.
        """
        elements = int(heads["elements"].sum())
        steps = 2 * (self.workers - 1)
        self.wire_bytes += BASELINE_BYTES * elements
        self.elements += elements
        self.paper_bits += int(heads["paper_bits"].sum())
        self.received_bytes += steps * BASELINE_BYTES * elements // self.workers
        self.messages += steps * self.workers
        ranks = np.arange(self.workers)
        after = (ranks + 1) % self.workers
        self.link_bytes[ranks, after] += steps * BASELINE_BYTES * heads["elements"] // self.workers
        self.link_messages[ranks, after] += steps
        _look_for_refusals(heads)

    def _count_to_all(self, heads: Heads, lengths: NDArray[np.int64]) -> None:
        others = ~np.eye(self.workers, dtype=bool)
        self._count_numbers(heads)
        link_bytes = np.where(others, np.maximum(lengths, 0)[:, None], 0)
        self._count_links(link_bytes, np.where(others, (heads["to_all"] >= 0)[:, None], 0))

    def _count_numbers(self, heads: Heads) -> None:
        self.elements += int(heads["elements"].sum())
        self.paper_bits += int(heads["paper_bits"].sum())

    def _count_links(self, link_bytes: NDArray[np.int64], link_messages: NDArray[np.int64]) -> None:
        self.received_bytes += int(link_bytes.sum())
        self.messages += int(link_messages.sum())
        self.link_bytes += link_bytes
        self.link_messages += link_messages


def _look_for_refusals(heads: Heads) -> None:
    refusing = np.flatnonzero(heads["refused"] >= 0)
    if refusing.size:
        raise RefusedUpdate(int(refusing[0]), int(heads["refused"][refusing[0]]))


class Crew(ABC):
    """Runs the rounds of this process's workers with those of the others.

    Attributes:
        carriers: of the workers in this process, by rank.
        ranks: theirs, ascending.
        workers: how many there are everywhere.
        waited_s: how long this process has waited for the others so far; simulated workers never do.
    """

    def __init__(self, carriers: Sequence[Carrier]) -> None:
        self.carriers = carriers
        self.ranks: Sequence[int] = [carrier.rank for carrier in carriers]
        self.workers = carriers[0].workers
        self.waited_s = 0.0

    def run(self, sides: Sequence[Side], traffic: Traffic) -> Agreed:
        """Carries out all rounds.

        Args:
            sides: one for each rank of this process.
            traffic: is counted in.

        Returns:
            What the workers agree on.

        Raises:
            RefusedUpdate: on every worker, once all know that one has no update.
            PeerLost: another worker is gone, or has been silent for too long.
            CorruptMessage: what arrived is no message of a round.
        """
        while True:
            moves = [side.move for side in sides if side.move is not None]
            if not moves:
                return sides[0].agreed
            assert len(moves) == len(sides), "every worker has as many rounds as the others"
            received: Sequence[Received] = [{}] * len(sides)
            if isinstance(moves[0], Known):
                traffic.count_known(moves[0])
            elif isinstance(moves[0], Passing):
                received = self._pass_on([move for move in moves if isinstance(move, Passing)], traffic)
            else:
                received = self._exchange([move for move in moves if isinstance(move, Sending)], traffic)
            for side, each in zip(sides, received, strict=True):
                side.receive(each)

    def _exchange(self, sendings: Sequence[Sending], traffic: Traffic) -> Sequence[Received]:
        """One round in which all send to all; what each worker here received."""
        sizes = np.zeros((self.workers, self.workers), np.int64)
        for carrier, sending in zip(self.carriers, sendings, strict=True):
            head = np.array(sending.head(), np.int64).view(np.uint8)
            to_all = head if sending.to_all is None else np.concatenate([head, sending.to_all])
            for other in carrier.others:
                own = sending.to.get(other)
                sizes[carrier.rank, other] = 0 if own is None else own.size
                carrier.send(other, _TAG, to_all if own is None else np.concatenate([head, own]))
        received = []
        heads = np.empty((self.workers, HEAD.itemsize), np.uint8)
        for carrier, sending in zip(self.carriers, sendings, strict=True):
            heads[carrier.rank] = np.array(sending.head(), np.int64).view(np.uint8)
            arrived = {} if sending.to_all is None else {carrier.rank: sending.to_all}
            for other, message in self._received(carrier, carrier.others):
                if message.size < HEAD.itemsize:
                    raise CorruptMessage(f"worker {other} sent {message.size} bytes, which are no round's")
                heads[other], payload = message[: HEAD.itemsize], message[HEAD.itemsize :]
                if sending.singly:
                    sizes[other, carrier.rank] = payload.size
                if payload.size or heads[other].view(HEAD)["to_all"][0] >= 0:
                    arrived[other] = payload
            received.append(dict(sorted(arrived.items())))
        self._count(traffic, heads.view(HEAD)[:, 0], sizes if sendings[0].singly else None)
        return received

    def _count(self, traffic: Traffic, heads: Heads, sizes: NDArray[np.int64] | None) -> None:
        traffic.count(heads, sizes)

    def _pass_on(self, passings: Sequence[Passing], traffic: Traffic) -> Sequence[Received]:
        """One round in which each sends to one worker, and receives from one."""
        for carrier, passing in zip(self.carriers, passings, strict=True):
            note = np.array(passing.note, np.int64).view(np.uint8)
            carrier.send(passing.receiver, _TAG, np.concatenate([note, passing.payload]))
            traffic.count_passed(carrier.rank, passing.receiver, passing.payload.size, passing.told_bytes)
        received = []
        for carrier, passing in zip(self.carriers, passings, strict=True):
            ((sender, message),) = self._received(carrier, [passing.sender])
            if message.size < passing.told_bytes:
                raise CorruptMessage(f"worker {sender} passed on {message.size} bytes, which are too few")
            note, payload = message[: passing.told_bytes], message[passing.told_bytes :]
            if sender not in self.ranks:
                traffic.count_passed(sender, carrier.rank, payload.size, passing.told_bytes)
            received.append(Passed(sender, payload, note.view(np.int64).tolist()))
        return received

    def _received(self, carrier: Carrier, sources: Sequence[int]) -> list[tuple[int, Payload]]:
        with self._waiting("round"):
            coming = [(source, carrier.receive(source, _TAG)) for source in sources]
            return [(source, message.result()) for source, message in coming]

    @contextmanager
    def _waiting(self, about: str) -> Iterator[None]:
        """Counts what goes on inside as waiting for the others."""
        yield

    @abstractmethod
    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Worker 0's tensors to all, in place."""

    @abstractmethod
    def links(self, traffic: Traffic) -> Links | None:
        """What went over each link, put together from what each process knows; all must call this together.

        Args:
            traffic: what this process's workers have counted.

        Returns:
            The same on every process; None where a transport decides about links.
        """
