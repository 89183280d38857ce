"""Runs rounds with one worker in each process, connected by torch.distributed (gloo or NCCL)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.spans import RECORDER
from taugrad.compressors.exchange.lost_peers import reaching
from taugrad.compressors.exchange.keys import TAG_BYTES, TO_ALL, Seal

from .boxes import Boxes, sizes_of
from .links import Links
from .rounds import (
    HEAD,
    NUMBER_BYTES,
    Agreed,
    Crew,
    Heads,
    Known,
    Passed,
    Passing,
    Payload,
    Received,
    Sending,
    Side,
    Traffic,
)

_Number = TypeVar("_Number", np.int64, np.uint8)
_HEADS, _SIZES, _MESSAGES = range(3)
"""What tags are about in a round."""


def receipts_first(operations: list[dist.P2POp]) -> list[dist.P2POp]:
    """The operations in the order in which gloo should start them: receiving first.

    Gloo announces that a receiver is ready over the same connection on which this worker sends. After a
    message, the announcement would arrive only when the message has, and a link would carry one direction
    after the other.
    """
    return sorted(operations, key=lambda each: each.op is dist.isend)


class ProcessCrew(Crew):
    """This process's worker, among those of the default process group."""

    def __init__(self, device: torch.device, key: bytes | None = None) -> None:
        """Joins the others.

        Args:
            device: where the transport takes its buffers from: the GPU for NCCL, the CPU for gloo.
            key: that of all workers: what goes between them in rounds gets tags; all of it must be `Sending`.

        Raises:
            WorkersDisagree: on every worker, where one has another key.
        """
        self.workers = dist.get_world_size()
        self._rank = dist.get_rank()
        self.ranks = [self._rank]
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")
        self._boxes = Boxes() if dist.get_backend() == "gloo" and key is None else None
        self._seal = None if key is None else Seal.meet(key, None, self._device)

    def run(self, sides: Sequence[Side], traffic: Traffic) -> Agreed:
        """See `Crew.run`."""
        (side,) = sides
        number = 0
        while side.move is not None:
            move = side.move
            if isinstance(move, Known):
                traffic.count_known(move)
                side.receive({})
                continue
            with self._waiting("round"):
                received = self._carry(move, number, traffic)
            number += isinstance(move, Sending)
            side.receive(received)
        return side.agreed

    def _carry(self, move: Sending | Passing, number: int, traffic: Traffic) -> Received:
        """What this worker receives in one round."""
        if self._seal is not None:
            assert isinstance(move, Sending), "a spec with anything else is refused"
            return self._carry_sealed(move, self._seal, traffic)
        if isinstance(move, Passing):
            return self._pass_on(move, traffic)
        if self._boxes is not None:
            arrived = self._boxes.exchange(number, move)
            traffic.count(arrived.heads, arrived.sizes)
            own = {} if move.to_all is None else {self._rank: move.to_all}
            return dict(sorted({**arrived.payloads, **own}.items()))
        heads, sizes = self._tell(move)
        received = self._exchange(move, heads["to_all"], sizes)
        traffic.count(heads, sizes)
        return received

    def _carry_sealed(self, sending: Sending, seal: Seal, traffic: Traffic) -> Received:
        """The same with a tag behind whatever goes to another worker, lengths included.

        Raises:
            CorruptMessage: something does not have its tag.
        """
        turn = seal.turn(_HEADS)
        rank = self._rank
        tagged = replace(
            sending,
            to={
                other: seal.sealed(payload, _MESSAGES, turn, other)
                for other, payload in sending.to.items()
                if payload.size
            },
            to_all=None if sending.to_all is None else seal.sealed(sending.to_all, _MESSAGES, turn),
        )
        heads, sizes = self._tell_sealed(tagged, seal, turn)
        received = self._exchange(tagged, heads["to_all"], sizes)
        traffic.count(heads, sizes, TAG_BYTES)
        opened: dict[int, Payload] = {}
        for other, arrived in received.items():
            if other != rank:
                alone = sizes is not None and sizes[other, rank] > 0
                opened[other] = seal.opened(arrived, other, _MESSAGES, turn, rank if alone else TO_ALL)
            elif sending.to_all is not None:
                opened[other] = sending.to_all
        return opened

    def _tell_sealed(self, sending: Sending, seal: Seal, turn: int) -> tuple[Heads, NDArray[np.int64] | None]:
        """As `_tell`, with tags; lengths come first."""
        head = seal.sealed(_as_bytes(sending.head()), _HEADS, turn)
        if not sending.singly:
            everybody = self._tell_each(np.tile(head, (self.workers, 1)))
            return self._opened_heads(everybody, seal, turn), None
        sizes = sizes_of(sending, self._rank, self.workers)
        mine = enumerate(sizes[self._rank].tolist())
        own = [seal.sealed(_as_bytes([size]), _SIZES, turn, to) for to, size in mine]
        everybody = self._tell_each(np.stack([np.concatenate([each, head]) for each in own]))
        told, heads = np.split(everybody, [own[0].size], axis=1)
        theirs = [
            seal.opened(each, other, _SIZES, turn, self._rank) if other != self._rank else each[:NUMBER_BYTES]
            for other, each in enumerate(told)
        ]
        sizes[:, self._rank] = np.concatenate(theirs).view(np.int64)
        return self._opened_heads(heads, seal, turn), sizes

    def _opened_heads(self, sealed: NDArray[np.uint8], seal: Seal, turn: int) -> Heads:
        told = [
            seal.opened(each, other, _HEADS, turn) if other != self._rank else each[:-TAG_BYTES]
            for other, each in enumerate(sealed)
        ]
        return np.concatenate(told).view(HEAD)

    @contextmanager
    def _waiting(self, about: str) -> Iterator[None]:
        """Counts what goes on inside as waiting for the others."""
        began = perf_counter()
        with reaching():
            yield
        ended = perf_counter()
        self.waited_s += ended - began
        RECORDER.add("exchange", "wire", began, ended, about)
        RECORDER.add("wait", "compute", began, ended)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """See `Crew.broadcast`."""
        if not tensors:
            return
        with self._waiting("buffers"):
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def links(self, traffic: Traffic) -> Links:
        """See `Crew.links`. Of its own sendings a process knows all."""
        own = torch.zeros((2, self.workers, self.workers), dtype=torch.int64)
        own[0, self._rank] = torch.from_numpy(traffic.link_messages[self._rank])
        own[1, self._rank] = torch.from_numpy((traffic.link_bytes + traffic.link_told)[self._rank])
        own[:, self._rank, self._rank] = 0
        summed = own.to(self._device)
        dist.all_reduce(summed)
        messages, nbytes = summed.cpu().numpy()
        return Links(messages, nbytes)

    def _pass_on(self, passing: Passing, traffic: Traffic) -> Passed:
        """Sends to one worker and receives from one at the same time: first numbers, then payloads."""
        numbers = [passing.payload.size, *passing.note]
        told = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        heard = torch.empty_like(told)
        _wait_for(
            [dist.P2POp(dist.isend, told, passing.receiver), dist.P2POp(dist.irecv, heard, passing.sender)]
        )
        size, *note = heard.tolist()
        arriving = torch.empty(size, dtype=torch.uint8, device=self._device)
        operations = []
        if passing.payload.size:
            operations.append(dist.P2POp(dist.isend, self._tensor(passing.payload), passing.receiver))
        if size:
            operations.append(dist.P2POp(dist.irecv, arriving, passing.sender))
        _wait_for(operations)
        traffic.count_passed(self._rank, passing.receiver, passing.payload.size, passing.told_bytes)
        traffic.count_passed(passing.sender, self._rank, size, passing.told_bytes)
        return Passed(passing.sender, _payload(arriving), note)

    def _tell(self, sending: Sending) -> tuple[Heads, NDArray[np.int64] | None]:
        """Everybody's heads; in a round to single workers also the lengths from this worker and to it."""
        head = np.tile(np.array(sending.head(), np.int64), (self.workers, 1))
        if not sending.singly:
            return self._tell_each(head).view(HEAD)[:, 0], None
        sizes = sizes_of(sending, self._rank, self.workers)
        everybody = self._tell_each(np.column_stack([head, sizes[self._rank]]))
        sizes[:, self._rank] = everybody[:, -1]
        return np.ascontiguousarray(everybody[:, :-1]).view(HEAD)[:, 0], sizes

    def _tell_each(self, mine: NDArray[_Number]) -> NDArray[_Number]:
        """Sends row r to worker r, and gets everybody's for this one: [workers, n].

        Not an all-gather: gloo's goes around a ring, which takes a delay of the link for each worker.
        """
        outgoing = torch.from_numpy(mine).to(self._device)
        arriving = torch.empty_like(outgoing)
        dist.all_to_all_single(arriving, outgoing)
        everybody: NDArray[_Number] = arriving.cpu().numpy()
        return everybody

    def _exchange(
        self, sending: Sending, to_all: NDArray[np.int64], sizes: NDArray[np.int64] | None
    ) -> Received:
        """Sends and receives at the same time, exactly as many bytes as there are."""
        operations: list[dist.P2POp] = []
        arriving: dict[int, Tensor] = {}
        mine = None if sending.to_all is None else self._tensor(sending.to_all)
        for other in range(self.workers):
            if other == self._rank:
                continue
            outgoing = self._tensor(sending.to[other]) if other in sending.to else mine
            if outgoing is not None and outgoing.numel():
                operations.append(dist.P2POp(dist.isend, outgoing, other))
            size = int(to_all[other])
            if sizes is not None and sizes[other, self._rank]:
                size = int(sizes[other, self._rank])
            if size >= 0:
                arriving[other] = torch.empty(size, dtype=torch.uint8, device=self._device)
            if size > 0:
                operations.append(dist.P2POp(dist.irecv, arriving[other], other))
        _wait_for(operations)
        received = {other: _payload(tensor) for other, tensor in arriving.items()}
        if sending.to_all is not None:
            received[self._rank] = sending.to_all
        return dict(sorted(received.items()))

    def _tensor(self, payload: Payload) -> Tensor:
        return torch.from_numpy(payload).to(self._device)


def _wait_for(operations: list[dist.P2POp]) -> None:
    """Starts all of them and waits for their end."""
    if operations:
        for work in dist.batch_isend_irecv(receipts_first(operations)):
            work.wait()


def _as_bytes(numbers: Sequence[int]) -> Payload:
    return np.array(numbers, np.int64).view(np.uint8)


def _payload(tensor: Tensor) -> Payload:
    payload: Payload = tensor.cpu().numpy()
    return payload
