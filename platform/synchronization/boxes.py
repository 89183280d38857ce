"""Rounds between processes connected by gloo, in one delay of the link.

Gloo sends nothing before it has heard that the receiver is ready, and a receiver has to know how long a
message is: to announce lengths and then to send takes four delays. Here receivers are ready two
synchronizations in advance, with buffers twice as long as the message was then; gloo accepts a shorter
message. Numbers and message go in one piece. What does not fit follows when its length is known.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.exchange.buckets import room_for
from taugrad.compressors.exchange.lost_peers import reaching

from .rounds import HEAD, NUMBER_BYTES, Heads, Payload, Sending

_FIRST_TAG = 1 << 21
"""Far from what other exchanges in the same group have."""
_TAGS_EACH, _REST = 2, 1
"""Of a round, and from its tag to that of what did not fit."""
_MOST_ROUNDS = 4
"""Of a synchronization that have messages to others than neighbours."""
_SETS: defaultdict[str, "count[int]"] = defaultdict(count)
"""How many sets of boxes there were, by group: what an earlier one is still ready for keeps its tags."""
_AHEAD = 2
"""For how many synchronizations a worker is ready: one is too few where it takes less than the delay."""
_MOST_TOLD = HEAD.itemsize + NUMBER_BYTES
_MOST_BYTES = 1 << 26
"""Of all buffers for one round. A longer message takes so long that its delays matter little."""
_NOTHING: Payload = np.empty(0, np.uint8)

_Link = tuple[int, int]
"""A round's number in its synchronization, and another worker."""


@dataclass(frozen=True)
class Arrived:
    """What one round brought.

    Attributes:
        heads: everybody's.
        sizes: int64 [workers, workers], bytes from row to column as far as this worker knows them; None where
            the round has no messages to single workers.
        payloads: others' messages, by sender.
    """

    heads: Heads
    sizes: NDArray[np.int64] | None
    payloads: dict[int, Payload]


@dataclass(frozen=True)
class _Box:
    """A buffer for what one worker sends in one round."""

    buffer: Tensor
    room: int
    """Bytes of it for the message."""
    work: dist.Work


class Boxes:
    """The buffers of this worker, and how long those of the others are for it.

    All workers must make their sets in the same order, and call `exchange` for the same rounds.
    """

    def __init__(self) -> None:
        """Expects nothing yet."""
        self._rank, self._workers = dist.get_rank(), dist.get_world_size()
        self._others = [rank for rank in range(self._workers) if rank != self._rank]
        assert dist.group.WORLD is not None
        number = next(_SETS[dist.group.WORLD.group_name])
        self._first_tag = _FIRST_TAG + _TAGS_EACH * _MOST_ROUNDS * number
        self._boxes: defaultdict[_Link, deque[_Box]] = defaultdict(deque)
        self._rooms: defaultdict[_Link, deque[int]] = defaultdict(deque)
        """Of the receivers' boxes. Both sides know them by the messages before."""
        self._sent: defaultdict[int, list[tuple[dist.Work, Tensor]]] = defaultdict(list)
        """By round; a tensor is kept until it has gone."""

    def exchange(self, number: int, sending: Sending) -> Arrived:
        """Sends to all others, and waits for all of them.

        Args:
            number: of the round in its synchronization.
            sending: this worker's.
        """
        assert number < _MOST_ROUNDS
        self._meet(number)
        rests = self._send(number, sending)
        arrived, missing = self._receive(number, sending)
        # Gloo announces over the same connection that a receiver is ready; so receipts go first.
        receipts = {other: self._expect(rest, other, number, _REST) for other, rest in missing.items()}
        for other, rest in rests.items():
            self._dispatch(rest, other, number, _REST)
        for other, work in receipts.items():
            with reaching(other):
                work.wait()
            arrived.payloads[other] = np.concatenate([arrived.payloads[other], missing[other].numpy()])
        return arrived

    def _meet(self, number: int) -> None:
        """Gets ready if this is the first time; and lets go of what was sent the last time."""
        for other in self._others:
            while len(self._rooms[number, other]) < _AHEAD:
                self._get_ready(number, other, 0)
                self._rooms[number, other].append(self._room(0))
        for work, _ in self._sent.pop(number, ()):
            with reaching():
                work.wait()

    def _get_ready(self, number: int, other: int, length: int) -> None:
        """For one more message, by the length of the latest."""
        room = self._room(length)
        buffer = torch.empty(_MOST_TOLD + room, dtype=torch.uint8)
        self._boxes[number, other].append(_Box(buffer, room, self._expect(buffer, other, number)))

    def _send(self, number: int, sending: Sending) -> dict[int, Tensor]:
        """Sends what fits; the rest, by receiver."""
        head = np.array(sending.head(), np.int64)
        to_all = _NOTHING if sending.to_all is None else sending.to_all
        whole = _joined(head, to_all)
        rests = {}
        for other in self._others:
            size, told = to_all.size, HEAD.itemsize
            if sending.singly:
                mine = sending.to.get(other, _NOTHING)
                size, told = mine.size, _MOST_TOLD
                whole = _joined(np.append(head, mine.size), mine)
            room = self._rooms[number, other].popleft()
            self._rooms[number, other].append(self._room(size))
            self._dispatch(whole[: told + room], other, number)
            if size > room:
                rests[other] = whole[told + room :]
        return rests

    def _receive(self, number: int, sending: Sending) -> tuple[Arrived, dict[int, Tensor]]:
        """What fits of all others' messages, and buffers for the rests."""
        fields = len(HEAD.names or ())
        told = _MOST_TOLD if sending.singly else HEAD.itemsize
        heads = np.empty((self._workers, fields), np.int64)
        heads[self._rank] = sending.head()
        sizes = sizes_of(sending, self._rank, self._workers) if sending.singly else None
        payloads, missing = {}, {}
        for other in self._others:
            box = self._boxes[number, other].popleft()
            with reaching(other):
                box.work.wait()
            content: Payload = box.buffer.numpy()
            numbers = content[:told].view(np.int64)
            heads[other] = numbers[:fields]
            length = int(heads[other, 0])
            if sizes is not None:
                sizes[other, self._rank] = numbers[fields]
                length = int(numbers[fields]) or -1
            taken = max(length, 0)
            self._get_ready(number, other, taken)
            if length >= 0:
                payloads[other] = content[told : told + min(length, box.room)]
            if taken > box.room:
                missing[other] = torch.empty(taken - box.room, dtype=torch.uint8)
        return Arrived(heads.view(HEAD)[:, 0], sizes, payloads), missing

    def _room(self, length: int) -> int:
        return min(room_for(length), most_room(self._workers))

    def _expect(self, buffer: Tensor, other: int, number: int, rest: int = 0) -> dist.Work:
        with reaching(other):
            work = dist.irecv(buffer, other, tag=self._first_tag + _TAGS_EACH * number + rest)
        assert work is not None
        return work

    def _dispatch(self, what: Tensor, other: int, number: int, rest: int = 0) -> None:
        with reaching(other):
            work = dist.isend(what, other, tag=self._first_tag + _TAGS_EACH * number + rest)
        assert work is not None
        self._sent[number].append((work, what))


def most_room(workers: int) -> int:
    """Bytes of a message for which there may be room; of a longer one, the rest follows."""
    return _MOST_BYTES // (_AHEAD * max(1, workers - 1))


def buffer_bytes(workers: int, nbytes: float) -> float:
    """Bytes of all buffers that a worker keeps for one round, by the length of a message."""
    room = min(room_for(round(nbytes)), most_room(workers))
    return _AHEAD * (workers - 1) * (_MOST_TOLD + room)


def sizes_of(sending: Sending, rank: int, workers: int) -> NDArray[np.int64]:
    """Bytes from row to column in a round to single workers, as the sender knows them: [workers, workers]."""
    sizes = np.zeros((workers, workers), np.int64)
    for other, payload in sending.to.items():
        sizes[rank, other] = payload.size
    return sizes


def _joined(numbers: NDArray[np.int64], payload: Payload) -> Tensor:
    return torch.from_numpy(np.concatenate([numbers.view(np.uint8), payload]))
