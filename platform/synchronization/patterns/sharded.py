"""Every worker owns a part of the elements, and sums that up for all (Krizhevsky's 1/K shards).

Strom's workers send each update to all others, so that what a worker receives grows with their number
(section 4). Here it sends only to the owner of a range; the owner sends the compressed sum to all, and
keeps what that leaves out in a residual of its own: nothing is lost on the way out or back.
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
    """Takes a message's parts as soon as they are made; the message that they add up to follows."""

    def out(self, number: int, part: Payload) -> None:
        """This worker's part about a range, for its owner."""

    def back(self, number: int, part: Payload) -> None:
        """The part about the sum of a range that this worker owns, for all others."""


class Sharded(Pattern):
    """Two rounds: to the owners, and from them to all. With one owner it is a parameter server.

    Elements are cut into ranges, which the owners have in turn, so that each has as many of those whose
    gradients come first. A message to or from an owner of several ranges is made of one part a range, each
    with its length before it.

    Attributes:
        ranges: of the elements, in their order.
        outlet: takes parts as they are made, where somebody sends them ahead of the rounds.
    """

    def __init__(
        self, method: Method, back: Method, setting: Setting, owners: int | None, buckets: int = 1
    ) -> None:
        """Cuts the elements among the owners.

        Args:
            method: what workers send by.
            back: what owners send by.
            setting: see there.
            owners: worker 0 and those behind it, 1 for a parameter server; None: all workers, for shards.
            buckets: ranges of an owner.
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
        """By range, of the present synchronization."""

    def numbers_of(self, owner: int) -> range:
        """Which ranges a worker owns; none where it is no owner."""
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
        del gradients  # many workers may wait here, simulated in one process
        sent = self._sent
        self.spent.tallies = list(chain.from_iterable(sent[number].tallies for number in sorted(sent)))
        received = yield Sending(
            to={owner: self._message(sent, owner) for owner in range(self.owners) if owner != rank},
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
        """Compresses the gradients of a range, and hands the part over where there is an outlet.

        Args:
            number: of the range.
            gradients: flat, of its pieces.
            iteration: synchronizations before this one.
        """
        self._sent[number] = own = self._compress(self._out[number], gradients, iteration)
        if self.outlet is not None:
            self.outlet.out(number, self._part(own.payload))

    def own(self, number: int) -> Payload | None:
        """What `send` made of a range in this synchronization, if it did."""
        return self._sent[number].payload if number in self._sent else None

    def send_back(self, number: int, incoming: Received, iteration: int) -> None:
        """Sums up a range that this worker owns, compresses the mean and hands it over likewise.

        Args:
            number: of the range.
            incoming: what all workers sent about it, this one included; nothing of one that sent nothing.
            iteration: synchronizations before this one.

        Raises:
            CorruptMessage: what a worker sent is no update of the range.
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
        """What is in a part, without its length; a view."""
        return part if self.buckets == 1 else part[NUMBER_BYTES:]

    def _part(self, payload: Payload) -> Payload:
        """A payload as it stands in a message."""
        if self.buckets == 1:
            return payload
        return np.concatenate([np.array([payload.size], "<i8").view(np.uint8), payload])

    def _message(self, sent: Mapping[int, Sent], owner: int) -> Payload:
        """All parts about an owner's ranges."""
        parts = [self._part(sent[number].payload) for number in self.numbers_of(owner)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _parts(self, message: Payload, owner: int, sender: int) -> dict[int, Payload]:
        """What is in a message about an owner's ranges, by range; raises CorruptMessage."""
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
        """The first parameter in the order of ranges because of which there is no update, if there is one."""
        found = (
            refused_by(sent[number], compressors[number], self.ranges[number].ordinals)
            for number in sorted(sent)
        )
        return next((each for each in found if each is not None), None)

    def _sum(self, number: int, incoming: Received) -> Tensor:
        """What all workers sent of a range, added in rank order."""
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
    """Whether one of them says that there is no update."""
    return any(is_refusal(payload) for payload in payloads.values())
