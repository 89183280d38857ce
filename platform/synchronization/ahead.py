"""Sends parts of messages before the rounds that they belong to, between processes connected by gloo.

A round (`boxes.py`) begins when all of its messages are ready. Parts that are ready earlier do not wait for
that: their receivers post buffers at the start of the step, twice as long as the last part was, and gloo
accepts a shorter message. The round carries the numbers only, and what does not fit follows when they have
told its length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.wire.exchange import room_for
from taugrad.compressors.wire.reaching import reaching

from .patterns import Sharded
from .rounds import NUMBER_BYTES, Heads, Payload

_FIRST_TAG = 1 << 22
"""Far from what other exchanges in the same group have."""
_OUT, _BACK, _REST = 0, 1, 2
_TAGS_EACH = 4
"""Of a range: on the way out or back, and what had no room."""
_BLANK = 0xFF
"""What a room is filled with. A length of such bytes is negative, and so none."""


@dataclass
class _Arriving:
    """A buffer for one worker's part."""

    sender: int
    tag: int
    room: Tensor
    work: dist.Work


class Ahead:
    """One worker's parts about ranges, to the owners and back, and the parts that it receives.

    All workers call `begin` before they compute gradients, so that nobody waits for a receiver. Parts are
    sent in any order.

    Attributes:
        mine: the ranges of this worker's that others send parts about.
        take: called with each of these, and the others' parts by sender, once it is known that all have an
            update.
        is_out: whether all of them have come to that in this synchronization.
        sent_out: when the first part of a synchronization was handed over on its way out; None before.
        sent_back: likewise on its way back.
    """

    def __init__(self, pattern: Sharded) -> None:
        """Expects nothing yet.

        Args:
            pattern: whose messages these are. It hands parts over from now on.
        """
        self._pattern, self._rank = pattern, pattern.setting.rank
        self._others = [rank for rank in range(pattern.setting.workers) if rank != self._rank]
        self._tells_lengths = pattern.buckets > 1
        # Without its length nothing is left of a part about a range without elements.
        self._sent = {i for i, shard in enumerate(pattern.ranges) if shard.pieces or self._tells_lengths}
        self._lengths: dict[tuple[int, int, bool], int] = {}
        """By tag, peer, and whether this worker sends: of the part before, which both sides know."""
        self._out: dict[int, list[_Arriving]] = {}
        self._back: dict[int, _Arriving] = {}
        self._taken: dict[int, dict[int, Payload]] = {}
        self._works: list[dist.Work] = []
        self.mine = sorted(set(pattern.numbers_of(self._rank)) & self._sent)
        self.take: Callable[[int, dict[int, Payload]], None] = _ignored
        self.is_out = False
        self.sent_out: float | None = None
        self.sent_back: float | None = None
        pattern.outlet = self

    def begin(self) -> None:
        """Posts buffers for all parts of a synchronization."""
        self.is_out, self.sent_out, self.sent_back = False, None, None
        others = sorted(self._sent - set(self.mine))
        self._out = {i: [self._expect(i, _OUT, sender) for sender in self._others] for i in self.mine}
        self._back = {i: self._expect(i, _BACK, i % self._pattern.owners) for i in others}
        self._taken = {}

    def out(self, number: int, part: Payload) -> None:
        """See `Outlet.out`."""
        owner = number % self._pattern.owners
        if owner != self._rank and number in self._sent:
            self.sent_out = self.sent_out or perf_counter()
            self._send(number, _OUT, part, owner)

    def back(self, number: int, part: Payload) -> None:
        """See `Outlet.back`."""
        if number in self._sent:
            self.sent_back = self.sent_back or perf_counter()
            for other in self._others:
                self._send(number, _BACK, part, other)

    def arrived(self, number: int) -> dict[int, Payload] | None:
        """The others' parts about a range of this worker's, by sender, if they are here.

        It does not wait, and may not know of a part that is here. It knows only of those that tell lengths.
        """
        arriving = self._out.get(number) if self._tells_lengths else None
        if arriving is not None and number not in self._taken and all(map(_seems_here, arriving)):
            self._taken[number] = {each.sender: self._take(each, None) for each in arriving}
        return self._taken.get(number)

    def take_out(self, number: int, sizes: NDArray[np.int64]) -> dict[int, Payload]:
        """Waits for the others' parts about a range of this worker's, by sender.

        Args:
            number: one of `mine`.
            sizes: int64 [workers, workers], of messages from row to column.
        """
        if number not in self._taken:
            self._taken[number] = {
                each.sender: self._take(
                    each, None if self._tells_lengths else int(sizes[each.sender, self._rank])
                )
                for each in self._out[number]
            }
        return self._taken[number]

    def receive_back(self, heads: Heads) -> dict[int, Payload]:
        """Waits for the other owners' messages to all, by sender; and until all of this worker's are sent.

        Args:
            heads: of all workers.
        """
        parts: dict[int, list[Payload]] = {
            sender: [] for sender in self._others if heads["to_all"][sender] >= 0
        }
        for each in self._back.values():
            length = None if self._tells_lengths else int(heads["to_all"][each.sender])
            parts[each.sender].append(self._take(each, length))
        self._back = {}
        works, self._works = self._works, []
        with reaching():
            for work in works:
                work.wait()
        return {sender: _joined(each) for sender, each in parts.items()}

    def _expect(self, number: int, way: int, sender: int) -> _Arriving:
        tag = _FIRST_TAG + _TAGS_EACH * number + way
        room = torch.full((room_for(self._lengths.get((tag, sender, False), 0)),), _BLANK, dtype=torch.uint8)
        return _Arriving(sender, tag, room, _start(dist.irecv, room, sender, tag))

    def _send(self, number: int, way: int, part: Payload, to: int) -> None:
        tag, whole = _FIRST_TAG + _TAGS_EACH * number + way, torch.from_numpy(part)
        room = room_for(self._lengths.get((tag, to, True), 0))
        self._lengths[tag, to, True] = part.size
        self._works.append(_start(dist.isend, whole[:room], to, tag))
        if part.size > room:
            self._works.append(_start(dist.isend, whole[room:], to, tag + _REST))

    def _take(self, arriving: _Arriving, length: int | None) -> Payload:
        """Waits for a part, and for what of it had no room.

        Args:
            arriving: the part.
            length: in bytes; None where the part tells it.
        """
        with reaching(arriving.sender):
            arriving.work.wait()
        first: Payload = arriving.room.numpy()
        if length is None:
            length = _told_length(first)
        self._lengths[arriving.tag, arriving.sender, False] = length
        if length <= first.size:
            return first[:length]
        rest = torch.empty(length - first.size, dtype=torch.uint8)
        work = _start(dist.irecv, rest, arriving.sender, arriving.tag + _REST)
        with reaching(arriving.sender):
            work.wait()
        return np.concatenate([first, rest.numpy()])


def _ignored(number: int, parts: dict[int, Payload]) -> None:
    """Takes parts where nobody sums them up."""


def _seems_here(arriving: _Arriving) -> bool:
    """Whether a part that tells its length seems to have arrived as a whole; waiting for it makes that sure.

    Gloo tells nobody of an arrival but who waits for it. A thread that waited would hold the group's
    connections open where another worker has failed. So look at the last byte; where it is blank by chance
    the part is not found, and is waited for later.
    """
    room: Payload = arriving.room.numpy()
    length = _told_length(room)
    return NUMBER_BYTES <= length <= room.size and room[length - 1] != _BLANK


def _told_length(part: Payload) -> int:
    """Bytes of a part that begins with the length of what is in it."""
    return NUMBER_BYTES + int(part[:NUMBER_BYTES].view("<i8")[0])


def _start(operation: Callable[..., Any], tensor: Tensor, peer: int, tag: int) -> dist.Work:
    with reaching(peer):
        (work,) = dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer, None, tag)])
    return work


def _joined(parts: Sequence[Payload]) -> Payload:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)
