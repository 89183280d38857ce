"""Every worker owns a part of the elements, and adds them up for all (Krizhevsky's 1/K shards).

Strom's workers send each update to all others, so what a worker receives grows with the number of workers
(section 4). Here, a worker sends the update of a range only to the owner of the range. The owner sends the
compressed sum to all, and keeps what the compression leaves out in a residual of its own. So nothing is lost,
neither on the way to the owner nor on the way back.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors.bucket.feedback import FeedbackCompressor, Sent
from taugrad.compressors.config import Method
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.wire.message import is_refusal

from ..pieces import Shard, cut
from ..resizing import Ranges
from ..rounds import NUMBER_BYTES, Agreed, Payload, Received, Rounds, Sending
from .base import Pattern, Setting, divide, refused_by

_NOTHING = np.empty(0, np.uint8)


class Outlet(Protocol):
    """Takes the parts of a message as soon as they are made, before the whole message."""

    def out(self, number: int, part: Payload) -> None:
        """Takes this worker's part about a range, for the owner of the range."""

    def back(self, number: int, part: Payload) -> None:
        """Takes the sum of a range that this worker owns, for all others."""


class Sharded(Pattern):
    """Two rounds: to the owners, and from them to all. With one owner it is a parameter server.

    The elements are cut into ranges, which are dealt out to the owners in turn. So every owner has as many of
    the ranges whose gradients are ready first. A message to or from an owner of several ranges has one part
    for each range, with the part's length before it.

    Attributes:
        ranges: all ranges, in the order of the elements.
        outlet: takes parts as they are made, if they are sent before the rounds.
    """

    def __init__(
        self, method: Method, back: Method, setting: Setting, owners: int | None, buckets: int = 1
    ) -> None:
        """Cuts the elements among the owners.

        Args:
            method: what workers send by.
            back: what owners send by.
            setting: see there.
            owners: number of owners, from worker 0 on; 1 is a parameter server, None stands for all workers.
            buckets: number of ranges of each owner.
        """
        super().__init__(method, setting)
        self.owners, self.buckets = owners or setting.workers, buckets
        self._all_own = owners is None
        self.ranges = cut(setting.sizes, self.owners * buckets)
        self.outlet: Outlet | None = None
        self._out = [self._compressor(method, shard) for shard in self.ranges]
        self._back = [self._compressor(back, shard) for shard in self.ranges]
        self._sent: dict[int, Sent] = {}
        self._returned: dict[int, Sent] = {}
        """By range, in the current synchronization."""

    def numbers_of(self, owner: int) -> range:
        """The ranges that a worker owns; none if it is not an owner."""
        return _numbers_of(owner, self.owners, len(self.ranges))

    def ranges_of(self, workers: int) -> Ranges:
        """See `Pattern.ranges_of`."""
        owners = workers if self._all_own else self.owners
        ranges = cut(self.setting.sizes, owners * self.buckets)
        numbers = [_numbers_of(worker, owners, len(ranges)) for worker in range(workers)]
        return Ranges(ranges, [[ranges[number] for number in each] for each in numbers])

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        """See `Pattern.rounds`. What `send` and `send_back` have done already is not done again."""
        rank = self.setting.rank
        for number, shard in enumerate(self.ranges):
            if number not in self._sent:
                self.send(number, shard.of(gradients), iteration)
        del gradients  # in a simulation, many workers wait here at the same time
        sent = self._sent
        self.spent.tallies = list(chain.from_iterable(sent[number].tallies for number in sorted(sent)))
        received = yield Sending(
            to={owner: self._message(sent, owner) for owner in range(self.owners) if owner != rank},
            singly=True,
            elements=sum(tally.sent for tally in self.spent.tallies),
            paper_bits=sum(tally.paper_bits for tally in self.spent.tallies),
            refused=self._refused(sent, self._out),
        )
        if rank >= self.owners:
            return self._by_range((yield Sending()))
        parts = {sender: self._parts(message, rank, sender) for sender, message in received.items()}
        for number in self.numbers_of(rank):
            if number not in self._returned:
                incoming = {sender: each[number] for sender, each in parts.items()}
                self.send_back(number, {**incoming, rank: sent[number].payload}, iteration)
        returned = self._returned
        received = yield Sending(
            to_all=self._message(returned, rank),
            paper_bits=sum(tally.paper_bits for each in returned.values() for tally in each.tallies),
            refused=self._refused(returned, self._back),
        )
        return self._by_range(received)

    def send(self, number: int, gradients: Sequence[Tensor], iteration: int) -> None:
        """Compresses the gradients of a range, and gives the part to the outlet, if there is one.

        Args:
            number: of the range.
            gradients: flat, of the range's pieces.
            iteration: number of synchronizations before this one.
        """
        self._sent[number] = own = self._compress(self._out[number], gradients, iteration)
        if self.outlet is not None:
            self.outlet.out(number, self._part(own.payload))

    def own(self, number: int) -> Payload | None:
        """The part that `send` made of a range in this synchronization, if it has."""
        return self._sent[number].payload if number in self._sent else None

    def send_back(self, number: int, incoming: Received, iteration: int) -> None:
        """Adds up a range that this worker owns, compresses the mean, and gives it to the outlet, if any.

        Args:
            number: of the range.
            incoming: what the workers sent about it, by sender, including this worker.
            iteration: number of synchronizations before this one.

        Raises:
            CorruptMessage: what a worker sent is not an update of the range.
        """
        shard, compressor = self.ranges[number], self._back[number]
        total = self._sum(number, incoming)
        pieces = list(torch.split(total, [piece.stop - piece.start for piece in shard.pieces]))
        self._returned[number] = own = self._compress(compressor, pieces, iteration)
        if self.outlet is not None:
            self.outlet.back(number, self._part(own.payload))

    def commit(self) -> None:
        """See `Pattern.commit`."""
        super().commit()
        self._sent, self._returned = {}, {}

    def content(self, part: Payload) -> Payload:
        """The payload of a part, without its length; a view."""
        return part if self.buckets == 1 else part[NUMBER_BYTES:]

    def _part(self, payload: Payload) -> Payload:
        """A payload as a part of a message: with its length before it, if there are several parts."""
        if self.buckets == 1:
            return payload
        return np.concatenate([np.array([payload.size], "<i8").view(np.uint8), payload])

    def _message(self, sent: Mapping[int, Sent], owner: int) -> Payload:
        """The message to or from an owner: the parts of all its ranges."""
        parts = [self._part(sent[number].payload) for number in self.numbers_of(owner)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _parts(self, message: Payload, owner: int, sender: int) -> dict[int, Payload]:
        """The payloads of an owner's message, by range; raises CorruptMessage."""
        numbers = self.numbers_of(owner)
        if self.buckets == 1:
            return {numbers[0]: message}
        found, begin = {}, 0
        for number in numbers:
            length = message[begin : begin + NUMBER_BYTES]
            size = int(length.view("<i8")[0]) if length.size == NUMBER_BYTES else -1
            begin += NUMBER_BYTES
            if not 0 <= size <= message.size - begin:
                raise CorruptMessage(f"the message of worker {sender} is not {len(numbers)} parts")
            found[number] = message[begin : begin + size]
            begin += size
        if begin != message.size:
            raise CorruptMessage(f"the message of worker {sender} has more than {len(numbers)} parts")
        return found

    def _by_range(self, received: Received) -> Agreed:
        agreed: Agreed = {}
        for owner, message in received.items():
            agreed |= self._parts(message, owner, owner)
        return agreed

    def _refused(self, sent: Mapping[int, Sent], compressors: Sequence[FeedbackCompressor]) -> int | None:
        """If a range was refused, the parameter that was not finite (of the first such range)."""
        found = (
            refused_by(sent[number], compressors[number], self.ranges[number].ordinals)
            for number in sorted(sent)
        )
        return next((each for each in found if each is not None), None)

    def _sum(self, number: int, incoming: Received) -> Tensor:
        """The sum of what all workers sent of a range, added in rank order."""
        with self._clock("decode"):
            total = self._zeros(self.ranges[number])
            for sender in range(self.setting.workers):
                self._add(self._out[number], sender, incoming.get(sender, _NOTHING), total)
            if self.reduction == "mean":
                divide(total, self.setting.workers)
        return total

    def assemble(self, agreed: Agreed) -> Tensor:
        """See `Pattern.assemble`."""
        with self._clock("decode"):
            total = torch.zeros(self.ranges[-1].stop, device=self.setting.like[0].device)
            for number, shard in enumerate(self.ranges):
                sender = number % self.owners
                self._add(self._back[number], sender, agreed[number], total[shard.start : shard.stop])
        return total

    def _zeros(self, shard: Shard) -> Tensor:
        return torch.zeros(shard.stop - shard.start, device=self.setting.like[0].device)

    def unsent(self) -> list[Tensor]:
        """See `Pattern.unsent`; what an owner has not sent back is everybody's, and not in it."""
        return self._unsent(self.ranges, self._out)

    def compressors(self) -> list[FeedbackCompressor]:
        """See `Pattern.compressors`."""
        return [*self._out, *(self._back[number] for number in self.numbers_of(self.setting.rank))]


def _numbers_of(owner: int, owners: int, ranges: int) -> range:
    return range(owner, ranges if owner < owners else 0, owners)


def has_refusal(payloads: Mapping[int, Payload]) -> bool:
    """Whether one of the payloads is a refusal."""
    return any(is_refusal(payload) for payload in payloads.values())
