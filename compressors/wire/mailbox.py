"""Receivers that are ready before a message is sent: for gloo over long links, and between sites.

Gloo's sender waits until it has heard that there is a receiver. One that said so a step before costs no
delay. Unlike collectives these sends and receipts have no future: the hook waits for them after the last
bucket. And unlike collectives any thread may start them, in any order of the buckets: tags tell them apart.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from .courier import Courier
from .gathering import SIZE_BYTES, Gathering, on_transport, stacked, told_length, with_length
from .lanes import Lanes, Receipt
from .sites import Sites

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


_Receipts = dict[int, Receipt]
"""By the worker whose message it is."""


class Mailbox:
    """What this worker is ready to receive of all others, by bucket.

    A message goes by the bucket's tag; those that one worker hands to another arrive in the order in which
    they were sent: its own first, then those that it hands on, by the ranks of their sources. All workers of
    a group must make its mailboxes in the same order.

    Nobody waits in a circle: a worker sends its own message before it waits for any, and hands others' on
    from a thread that waits for nothing else.
    """

    def __init__(self, group: dist.ProcessGroup, sites: Sites | None = None, connections: int = 1) -> None:
        """Gets ready for no bucket yet.

        Args:
            group: whose workers take part.
            sites: where they are, the same on all; by default all are at one, so that nothing is handed on.
            connections: how many each two workers have.
        """
        self._lanes = Lanes(group, connections)
        self.rank, self.workers = dist.get_rank(group), dist.get_world_size(group)
        self.sites = Sites.one(self.workers) if sites is None else sites
        self._tag = _FIRST_TAG + _TAGS_EACH * next(_MAILBOXES[group.group_name])
        mine = self.sites.hops[self.sites.hops[:, 1] == self.rank].tolist()
        self._receivers = [to for source, _, to in mine if source == self.rank]
        self._handed_on = {source: [to for each, _, to in mine if each == source] for source, _, _ in mine}
        self._handed_on.pop(self.rank, None)
        """By source, ascending."""
        self._senders = [(source, by) for source, by, to in self.sites.hops.tolist() if to == self.rank]
        self._senders.sort(key=lambda each: each[0] != each[1])
        """Sources and who hands over their messages; what comes from a worker itself is first."""
        self._rooms: dict[int, int] = {}
        self._receipts: dict[int, _Receipts] = {}
        self._sent: dict[int, list[dist.Work]] = {}
        self._courier = Courier()
        self._errands: dict[int, Future[list[dist.Work]]] = {}

    def expects(self, bucket: int) -> bool:
        """Whether it is ready for messages about a bucket."""
        return bucket in self._receipts

    def expect(self, bucket: int, room: int) -> None:
        """Gets ready for messages about a bucket, of so many bytes and their length; once for each exchange.

        All workers must make the same room.
        """
        tag = self._tag + bucket
        self._receipts[bucket] = {source: self._lanes.expect(room, by, tag) for source, by in self._senders}
        self._rooms[bucket] = room

    def send(self, bucket: int, message: Tensor) -> int:
        """Sends to all others what they have room for; returns how much that is, in bytes."""
        room = self._rooms[bucket]
        for work in self._sent.pop(bucket, ()):
            work.wait()  # of the step before: its messages have long arrived
        self._sent[bucket] = self._send(bucket, with_length(message, room), self._receivers, told=True)
        if self._handed_on:
            errand = partial(self._hand_on, bucket, self._receipts[bucket], told=True)
            self._errands[bucket] = self._courier.send(errand)
        return room

    def receive(self, bucket: int) -> list[Tensor]:
        """Waits for the messages about a bucket: uint8, from their lengths on; nothing of this worker."""
        receipts = self._receipts.pop(bucket)
        if self._handed_on:
            self._sent[bucket] += self._errands.pop(bucket).result()
        return self._received(receipts)

    def exchange(self, bucket: int, rest: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Sends what had no room to all others and waits for theirs, the same way; nothing of this worker.

        Args:
            bucket: whose messages have been received.
            rest: uint8 [lengths of this worker].
            lengths: of each worker's rest, 0 for none.
        """
        tag = self._tag + bucket
        receipts = {
            source: self._lanes.expect_over_one(lengths[source], by, tag)
            for source, by in self._senders
            if lengths[source]
        }
        works = self._send(bucket, rest, self._receivers, told=False) if rest.numel() else []
        works += self._hand_on(bucket, receipts, told=False)
        arrived = self._received(receipts)
        for work in works:
            work.wait()
        return arrived

    def _send(self, bucket: int, what: Tensor, receivers: Sequence[int], *, told: bool) -> list[dist.Work]:
        send = self._lanes.send if told else self._lanes.send_over_one
        return [work for to in receivers for work in send(what, to, self._tag + bucket)]

    def _hand_on(self, bucket: int, receipts: _Receipts, *, told: bool) -> list[dist.Work]:
        """Waits for each message that goes on from here, and sends it on as long as it is.

        Args:
            bucket: what they are about.
            receipts: of all messages about it.
            told: whether their lengths stand before them; the receivers know them otherwise.
        """
        works: list[dist.Work] = []
        for source, receivers in self._handed_on.items():
            if source in receipts:
                receipts[source].wait()
                what = receipts[source].arrived()
                if told:  # a slice ends where what arrived does
                    what = what[: SIZE_BYTES + told_length(what)]
                works += self._send(bucket, what, receivers, told=told)
        return works

    def _received(self, receipts: _Receipts) -> list[Tensor]:
        """By rank, once all are here; those that were handed on are."""
        for source, receipt in receipts.items():
            if source not in self._handed_on:
                receipt.wait()
        nothing = torch.empty(0, dtype=torch.uint8)
        return [receipts[rank].arrived() if rank in receipts else nothing for rank in range(self.workers)]


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
        self.wire_bytes = int(self._lengths @ self._mailbox.sites.times_handed_over)
        if max(self.sizes) > self._room:
            self._rests = self._exchange_rests([max(0, size - self._room) for size in self.sizes])

    @property
    def received_bytes(self) -> int:
        """See `Gathering.received_bytes`. Who hands a message on hands it over anew; it arrives once."""
        return int(self._lengths.sum()) * (self.workers - 1)

    @property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array(self.sizes, np.int64) + SIZE_BYTES

    def _exchange_rests(self, lengths: list[int]) -> list[Tensor]:
        return self._mailbox.exchange(self._bucket, self._own[self._room :], lengths)

    def rows(self) -> Tensor:
        """See `Gathering.rows`."""
        messages = [each[SIZE_BYTES:][:size] for each, size in zip(self._arrived, self.sizes, strict=True)]
        if self._rests is not None:
            messages = [torch.cat(parts) for parts in zip(messages, self._rests, strict=True)]
        messages[self._mailbox.rank] = self._own
        return stacked(messages, pinned=self._own.is_pinned())
