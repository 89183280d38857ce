"""A synchronization in rounds of messages, with the same code for real and for simulated workers.

Every worker runs the same generator. In each round, what it yields is sent, and what it gets back has
arrived. A `Runner` runs the rounds over carriers, between processes or between the workers of one process.
Bytes and results are the same. A round takes one delay of the link.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal
from weakref import finalize

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..errors import CorruptMessage, reaching
from ..spans import RECORDER
from .addresses import transport_of
from .buckets import ExchangeForm
from .carrier import Carrier, Payload, in_memory
from .sites import Sites
from .tensors import broadcast
from .traffic import HEAD, Head, Heads, Known, Links, Traffic

_TAG = "round"


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


class Runner(ABC):
    """Runs the rounds of this process's workers with those of the others.

    Attributes:
        carriers: of the workers in this process, by rank.
        ranks: theirs, ascending.
        workers: how many there are everywhere.
        waits: whether there are others to wait for; simulated workers never do.
        waited_s: how long this process has waited for the others so far.
    """

    def __init__(self, carriers: Sequence[Carrier]) -> None:
        self.carriers = carriers
        self.ranks: Sequence[int] = [carrier.rank for carrier in carriers]
        self.workers = carriers[0].workers
        self.waits = len(carriers) < self.workers
        self.waited_s = 0.0

    def run(self, participants: Sequence[Participant], traffic: Traffic) -> Result:
        """Carries out and counts all rounds of a participant for each rank here; what the workers agree on.

        Raises:
            RefusedUpdate: on every worker, once all know that one has no update.
            PeerLost: another worker is gone, or has been silent for too long.
            CorruptMessage: what arrived is no message of a round.
        """
        while True:
            moves = [each.move for each in participants if each.move is not None]
            if not moves:
                return participants[0].agreed
            assert len(moves) == len(participants), "every worker has as many rounds as the others"
            received: Sequence[Received] = [{}] * len(participants)
            if isinstance(moves[0], Known):
                traffic.count_known(moves[0])
            elif isinstance(moves[0], Passing):
                received = self._pass_on([move for move in moves if isinstance(move, Passing)], traffic)
            else:
                received = self._exchange([move for move in moves if isinstance(move, Sending)], traffic)
            for participant, each in zip(participants, received, strict=True):
                participant.receive(each)

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
        for carrier, each in zip(self.carriers, passings, strict=True):
            carrier.send(each.receiver, _TAG, each.payload)
            size = each.payload.size - each.told_bytes
            traffic.count_passed(carrier.rank, each.receiver, size, each.told_bytes)
        received = []
        for carrier, each in zip(self.carriers, passings, strict=True):
            ((sender, message),) = self._received(carrier, [each.sender])
            if message.size < each.told_bytes:
                raise CorruptMessage(f"worker {sender} passed on {message.size} bytes, which are too few")
            if sender not in self.ranks:
                size = message.size - each.told_bytes
                traffic.count_passed(sender, carrier.rank, size, each.told_bytes)
            received.append({sender: message})
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
    def gather(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        """All workers' notes: [workers, ...] from [workers here, ...]; all must call this together."""

    @abstractmethod
    def links(self, traffic: Traffic) -> Links | None:
        """What went over each link, put together from what each process counted; all must call this together.

        None where a transport decides about links.
        """


class ProcessRunner(Runner):
    """This process's worker, among those of a process group."""

    def __init__(
        self, device: torch.device, carrier: Carrier, group: dist.ProcessGroup | None = None
    ) -> None:
        """Joins a group's workers, by default all; the carrier is closed with this object."""
        super().__init__([carrier])
        finalize(self, carrier.close)
        self._group = group
        self._device = transport_of(group, device)

    @contextmanager
    def _waiting(self, about: str) -> Iterator[None]:
        began = perf_counter()
        with reaching():
            yield
        ended = perf_counter()
        self.waited_s += ended - began
        RECORDER.add("exchange", "wire", began, ended, about)
        RECORDER.add("wait", "compute", began, ended)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        if not tensors:
            return
        with self._waiting("buffers"):
            broadcast(tensors, self._group, self._device)

    def gather(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        mine = torch.from_numpy(own[0]).to(self._device)
        everybody = [torch.empty_like(mine) for _ in range(self.workers)]
        with self._waiting("notes"):
            dist.all_gather(everybody, mine, group=self._group)
        return np.stack([each.cpu().numpy() for each in everybody])

    def links(self, traffic: Traffic) -> Links:
        (rank,) = self.ranks  # of its own sendings a process knows all
        own = torch.zeros((2, self.workers, self.workers), dtype=torch.int64)
        own[0, rank] = torch.from_numpy(traffic.link_messages[rank])
        own[1, rank] = torch.from_numpy((traffic.link_bytes + traffic.link_told)[rank])
        own[:, rank, rank] = 0
        summed = own.to(self._device)
        dist.all_reduce(summed, group=self._group)
        messages, nbytes = summed.cpu().numpy()
        return Links(messages, nbytes)


Counting = Literal["rounds", "all-reduce"] | ExchangeForm
"""Whose bytes are counted: our rounds', or those that the DDP hook's exchange would have: in one of its
forms, without compression torch's all-reduce."""


class SimulatedRunner(Runner):
    """All workers, over a carrier in memory (Anoosheh, section 2.2)."""

    def __init__(self, workers: int, counting: Counting = "rounds", sites: Sites | None = None) -> None:
        """Takes in all workers; for the form hierarchical, at sites, by default all at one."""
        super().__init__(in_memory(workers))
        self._counting = counting
        self._sites = Sites.one(workers) if sites is None else sites

    def _count(self, traffic: Traffic, heads: Heads, sizes: NDArray[np.int64] | None) -> None:
        if self._counting == "rounds":
            super()._count(traffic, heads, sizes)
        elif self._counting == "all-reduce":
            traffic.count_all_reduce(heads)
        else:
            traffic.count_gathered(heads, heads["to_all"], self._sites)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to do: whoever runs the workers keeps worker 0's."""

    def gather(self, own: NDArray[np.float64]) -> NDArray[np.float64]:
        return own

    def links(self, traffic: Traffic) -> Links | None:
        if self._counting not in ("rounds", "hierarchical"):
            return None
        others = ~np.eye(self.workers, dtype=bool)
        return Links(traffic.link_messages * others, (traffic.link_bytes + traffic.link_told) * others)
