"""Receivers that post their buffers before a message is sent, for gloo.

Gloo's sender waits until it has heard that the receiver is ready. This announcement goes over the same
connection as the worker's own messages. If a worker gets ready only after it has begun to send, the other one
may not begin before all of that has arrived, and a link carries one direction after the other. A worker that
gets ready two steps earlier avoids this, and the delay. If it gets ready when it has read the previous step,
the announcement arrives too late when a step is shorter than the delay.

Unlike collectives, any thread may start these sends and receives, in any order of the buckets: tags tell them
apart.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.futures import Future as Told

from .courier import Courier
from .gathering import SIZE_BYTES, Gathering, told_length, with_length
from .reaching import reaching
from .sites import Sites

_FIRST_TAG = 1 << 24
"""Far from the tags of other programs that use the same group."""
_TAGS_EACH = 1 << 20
"""Numbers of buckets are smaller. They serve as tags, because callbacks get ready for buckets in any
order."""
_REST = 1 << 19
"""From a bucket's tag to the tag of what did not fit."""
_AHEAD = 2
"""Number of exchanges of a bucket for which a worker is ready in advance."""
_MAILBOXES: defaultdict[str, "count[int]"] = defaultdict(count)
"""How many there were, by group: tags are a group's own."""


@dataclass(frozen=True)
class Receipt:
    """Where what one worker hands over will be, and what waits for it."""

    buffer: Tensor
    work: dist.Work


_Receipts = dict[int, Receipt]
"""By the worker whose message it is."""


@dataclass(frozen=True)
class _Sent:
    """What is on its way to a worker."""

    to: int
    work: dist.Work


def _wait_for(sent: Iterable[_Sent]) -> None:
    """Until it has been handed over."""
    for each in sent:
        with reaching(each.to):
            each.work.wait()


class Mailbox:
    """What this worker is ready to receive from all others, by bucket.

    A message has the bucket's tag. Messages from one worker to another arrive in the order in which they were
    sent: first its own, then those that it forwards, by the ranks of their sources. All workers of a group
    must create its mailboxes in the same order.

    There is no deadlock: a worker sends its own message before it waits for any, and forwards those of others
    from a thread that waits for nothing else.
    """

    def __init__(self, group: dist.ProcessGroup, sites: Sites | None = None) -> None:
        """Does not get ready for any bucket yet.

        Args:
            group: the process group of the workers.
            sites: their sites, the same on all workers; by default one site, so that nothing is forwarded.
        """
        self._group = group
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
        self._handed_over_by = dict(self._senders)
        self._rooms: defaultdict[int, deque[int]] = defaultdict(deque)
        """Of the exchanges to come."""
        self._receipts: defaultdict[int, deque[_Receipts]] = defaultdict(deque)
        self._sent: dict[int, list[_Sent]] = {}
        self._courier, self._reader = Courier(), Courier()
        self._errands: dict[int, Future[list[_Sent]]] = {}

    def expect(self, bucket: int, room: int) -> None:
        """Gets ready for messages about a bucket, of this many bytes and their length, unless it is ready.

        All workers must use the same size, before the first exchange and after each one.

        Raises:
            PeerLost: a worker from which messages come is gone.
        """
        tag = self._tag + bucket
        while len(self._rooms[bucket]) < _AHEAD:
            receipts = {}
            for source, by in self._senders:
                with reaching(source, by):
                    receipts[source] = self._expect(SIZE_BYTES + room, by, tag)
            self._receipts[bucket].append(receipts)
            self._rooms[bucket].append(room)

    def send(self, bucket: int, message: Tensor) -> int:
        """Sends to all others what fits into their buffers; returns how much that is, in bytes."""
        room = self._rooms[bucket].popleft()
        _wait_for(self._sent.pop(bucket, ()))  # of the step before: its messages have long arrived
        tag, whole = self._tag + bucket, with_length(message, room)
        self._sent[bucket] = self._send(tag, whole, self._receivers)
        if self._handed_on:
            errand = partial(self._hand_on, self._tag + bucket, self._receipts[bucket][0], told=True)
            self._errands[bucket] = self._courier.send(errand)
        return room

    def receive(self, bucket: int) -> list[Tensor]:
        """Waits for the messages about a bucket: uint8, from their lengths on; nothing of this worker."""
        receipts = self._receipts[bucket].popleft()
        if self._handed_on:
            self._sent[bucket] += self._errands.pop(bucket).result()
        return self._received(receipts)

    def follow(self, bucket: int) -> Future[list[Tensor]]:
        """Makes a thread `receive`, after the buckets that it was given before."""
        return self._reader.send(partial(self.receive, bucket))

    def exchange(self, bucket: int, rest: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Sends what did not fit to all others, and waits for theirs in the same way; not of this worker.

        Args:
            bucket: whose messages have been received.
            rest: uint8 [lengths of this worker].
            lengths: of each worker's rest, 0 for none.
        """
        tag = self._tag + _REST + bucket
        receipts = {}
        for source, by in self._senders:
            if lengths[source]:
                with reaching(source, by):
                    receipts[source] = self._expect(lengths[source], by, tag)
        sent = self._send(tag, rest, self._receivers) if rest.numel() else []
        sent += self._hand_on(tag, receipts, told=False)
        arrived = self._received(receipts)
        _wait_for(sent)
        return arrived

    def _expect(self, nbytes: int, by: int, tag: int) -> Receipt:
        buffer = torch.empty(nbytes, dtype=torch.uint8)
        return Receipt(buffer, self._group.recv([buffer], by, tag))

    def _send(self, tag: int, what: Tensor, receivers: Sequence[int]) -> list[_Sent]:
        sent = []
        for to in receivers:
            with reaching(to):
                sent.append(_Sent(to, self._group.send([what], to, tag)))
        return sent

    def _hand_on(self, tag: int, receipts: _Receipts, *, told: bool) -> list[_Sent]:
        """Waits for each message that goes on from here, and sends it on as long as it is.

        Args:
            tag: by which they go on.
            receipts: of all messages about it.
            told: whether their lengths precede them; otherwise the receivers know the lengths.
        """
        sent: list[_Sent] = []
        for source, receivers in self._handed_on.items():
            if source in receipts:
                self._wait_for_message(source, receipts[source])
                what = receipts[source].buffer
                if told:  # a slice ends where what arrived does
                    what = what[: SIZE_BYTES + told_length(what)]
                sent += self._send(tag, what, receivers)
        return sent

    def _wait_for_message(self, source: int, receipt: Receipt) -> None:
        with reaching(source, self._handed_over_by[source]):
            receipt.work.wait()

    def _received(self, receipts: _Receipts) -> list[Tensor]:
        """By rank, once all are here; those that were forwarded are."""
        for source, receipt in receipts.items():
            if source not in self._handed_on:
                self._wait_for_message(source, receipt)
        nothing = torch.empty(0, dtype=torch.uint8)
        return [receipts[rank].buffer if rank in receipts else nothing for rank in range(self.workers)]


class Expected(Gathering):
    """Sends each message to each worker, which is ready; what does not fit follows in a second round."""

    may_go_on = True

    def __init__(self, message: Tensor, group: dist.ProcessGroup, mailbox: Mailbox, bucket: int) -> None:
        super().__init__(group)
        self._own = message
        self._mailbox, self._bucket = mailbox, bucket
        self._room = mailbox.send(bucket, self._own)
        self._followed: Future[list[Tensor]] | None = None
        self._rests: list[Tensor] | None = None

    def follow(self) -> None:
        """See `Gathering.follow`."""
        told: Told[Any] = Told()

        def tell(followed: Future[list[Tensor]]) -> None:
            problem = followed.exception()
            if problem is None:
                told.set_result(None)
            else:
                told.set_exception(problem)

        self.arrived = told
        self._followed = self._mailbox.follow(self._bucket)
        self._followed.add_done_callback(tell)

    def is_whole(self) -> bool:
        """See `Gathering.is_whole`."""
        if self._followed is not None:
            self._take(self._followed.result())
        return max(self.sizes) <= self._room

    def complete(self) -> None:
        """See `Gathering.complete`."""
        if self._followed is None:
            self._take(self._mailbox.receive(self._bucket))
        if not self.is_whole():
            self._rests = self._exchange_rests([max(0, size - self._room) for size in self.sizes])

    def _take(self, arrived: list[Tensor]) -> None:
        sizes = [told_length(each) for each in arrived]
        sizes[self._mailbox.rank] = self._own.numel()
        # Set when they are whole: another thread, which has taken them too, may be reading messages by them.
        self._arrived, self.sizes = arrived, sizes
        self.wire_bytes = int(self._lengths @ self._mailbox.sites.times_handed_over)

    @property
    def received_bytes(self) -> int:
        """See `Gathering.received_bytes`. Who hands a message on hands it over anew; it arrives once."""
        return int(self._lengths.sum()) * (self.workers - 1)

    @property
    def _lengths(self) -> NDArray[np.int64]:
        return np.array(self.sizes, np.int64) + SIZE_BYTES

    def _exchange_rests(self, lengths: list[int]) -> list[Tensor]:
        return self._mailbox.exchange(self._bucket, self._own[self._room :], lengths)

    def messages(self) -> Sequence[Tensor]:
        """See `Gathering.messages`."""
        messages = [each[SIZE_BYTES:][:size] for each, size in zip(self._arrived, self.sizes, strict=True)]
        if self._rests is not None:
            messages = [torch.cat(parts) for parts in zip(messages, self._rests, strict=True)]
        messages[self._mailbox.rank] = self._own
        return messages
