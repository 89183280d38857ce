"""Receivers that are ready before a message is sent: for gloo over long links.

Gloo's sender waits until it has heard that there is a receiver. One that said so a step before costs no
delay. Unlike collectives these sends and receipts have no future: the hook waits for them after the last
bucket.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor

from .gathering import SIZE_BYTES, Gathering, on_transport, stacked, told_length, with_length

_FIRST_TAG = 1 << 24
"""Far from what a program that uses the same group may have."""
_TAGS_EACH = 1 << 20
"""Buckets have smaller numbers. They are their tags: callbacks get ready for them in any order."""
_TRIES = 5
_MAILBOXES: defaultdict[str, "count[int]"] = defaultdict(count)
"""How many there were, by group: tags are a group's own."""


def delay_of(group: dist.ProcessGroup) -> float:
    """Seconds that a small all-reduce takes at least, of the slowest worker: the same number on all."""
    seconds = []
    for _ in range(_TRIES):
        started = perf_counter()
        dist.all_reduce(torch.zeros(1), group=group)
        seconds.append(perf_counter() - started)
    least = torch.tensor([min(seconds)], dtype=torch.float64)
    dist.all_reduce(least, op=dist.ReduceOp.MAX, group=group)
    return float(least)


@dataclass
class _Receipt:
    """Where one worker's message will be, and what waits for it."""

    buffer: Tensor
    work: dist.Work


class Mailbox:
    """What this worker is ready to receive from all others, by bucket.

    A message goes by the bucket's tag; those of one worker arrive in the order in which they were sent. All
    workers of a group must make its mailboxes in the same order.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.workers = group, dist.get_rank(group), dist.get_world_size(group)
        self._tag = _FIRST_TAG + _TAGS_EACH * next(_MAILBOXES[group.group_name])
        self._rooms: dict[int, int] = {}
        self._receipts: dict[int, dict[int, _Receipt]] = {}
        self._sent: dict[int, list[dist.Work]] = {}

    def expects(self, bucket: int) -> bool:
        """Whether it is ready for messages about a bucket."""
        return bucket in self._receipts

    def expect(self, bucket: int, room: int) -> None:
        """Gets ready for messages about a bucket, of so many bytes and their length; once for each exchange.

        All workers must make the same room.
        """
        receipts = {}
        for source in self._others():
            buffer = torch.empty(SIZE_BYTES + room, dtype=torch.uint8)
            receipts[source] = _Receipt(buffer, self.group.recv([buffer], source, self._tag + bucket))
        self._receipts[bucket], self._rooms[bucket] = receipts, room

    def send(self, bucket: int, message: Tensor) -> int:
        """Sends to all others what they have room for; returns how much that is, in bytes."""
        room, tag = self._rooms[bucket], self._tag + bucket
        for work in self._sent.pop(bucket, ()):
            work.wait()  # of the step before: its messages have long arrived
        mine = with_length(message, room)
        self._sent[bucket] = [self.group.send([mine], to, tag) for to in self._others()]
        return room

    def receive(self, bucket: int) -> list[Tensor]:
        """Waits for the messages about a bucket: uint8 [SIZE_BYTES + room] each; nothing of this worker."""
        receipts = self._receipts.pop(bucket)
        for receipt in receipts.values():
            receipt.work.wait()
        nothing = torch.empty(0, dtype=torch.uint8)
        return [receipts[rank].buffer if rank in receipts else nothing for rank in range(self.workers)]

    def _others(self) -> Sequence[int]:
        return [rank for rank in range(self.workers) if rank != self.rank]


class Expected(Gathering):
    """Each message to each worker, who is ready for it; what has no room follows in a second round."""

    def __init__(self, message: Tensor, group: dist.ProcessGroup, mailbox: Mailbox, bucket: int) -> None:
        super().__init__(group)
        self._own = on_transport(message, message.numel(), torch.device("cpu"))
        self._mailbox, self._bucket = mailbox, bucket
        self._room = mailbox.send(bucket, self._own)
        self._rests: list[Tensor] | None = None

    def complete(self) -> None:
        """See `Gathering.complete`."""
        self._arrived = self._mailbox.receive(self._bucket)
        self.sizes = [told_length(each) for each in self._arrived]
        self.sizes[self._mailbox.rank] = self._own.numel()
        self.wire_bytes = sum(self.sizes) + self.workers * SIZE_BYTES
        if max(self.sizes) > self._room:
            self._rests = self._exchange_rests([max(0, size - self._room) for size in self.sizes])

    def _exchange_rests(self, lengths: list[int]) -> list[Tensor]:
        arriving = torch.empty(sum(lengths), dtype=torch.uint8)
        mine = self._own[self._room :]
        dist.all_to_all_single(
            arriving, mine.repeat(self.workers), lengths, [mine.numel()] * self.workers, group=self.group
        )
        return list(torch.split(arriving, lengths))

    def rows(self) -> Tensor:
        """See `Gathering.rows`."""
        messages = [each[SIZE_BYTES:][:size] for each, size in zip(self._arrived, self.sizes, strict=True)]
        if self._rests is not None:
            messages = [torch.cat(parts) for parts in zip(messages, self._rests, strict=True)]
        messages[self._mailbox.rank] = self._own
        return stacked(messages, pinned=self._own.is_pinned())
