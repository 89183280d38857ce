"""Every worker owns a part of the elements, and adds them up for all (Krizhevsky's 1/K shards).

Strom's workers send each update to all others, so what a worker receives grows with the number of workers
(section 4). Here, a worker sends the update of a range only to the owner of the range. The owner sends the
compressed sum to all, and keeps what the compression leaves out in a residual of its own. So nothing is lost,
neither on the way to the owner nor on the way back.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from ...bucket.compressor import Outgoing
from ...bucket.feedback import FeedbackCompressor
from ...method import Method
from ..pieces import Shard, cut
from ..rounds import Received, Result, Rounds, Sending
from .base import BACK, Parts, Pattern, Setting, divide, refused_by

_NOTHING = np.empty(0, np.uint8)


class Sharded(Pattern):
    """Two rounds: to the owners, and from them to all. With one owner it is a parameter server.

    Attributes:
        ranges: by owner, the elements that it adds up.
    """

    def __init__(self, method: Method, back: Method, setting: Setting, owners: int | None) -> None:
        """Cuts the elements among the owners.

        Args:
            method: what workers send by.
            back: what owners send by.
            setting: see there.
            owners: number of owners, from worker 0 on; 1 is a parameter server, None stands for all workers.
        """
        super().__init__(method, setting)
        self.ranges = cut(setting.sizes, owners or setting.workers)
        self._out = [self._compressor(method, shard) for shard in self.ranges]
        self._back = [self._compressor(back, shard) for shard in self.ranges]

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        rank = self.setting.rank
        sent = [
            self._compress(compressor, shard.of(gradients), iteration)
            for shard, compressor in zip(self.ranges, self._out, strict=True)
        ]
        del gradients  # in a simulation, many workers wait here at the same time
        self.spent.tallies = list(chain.from_iterable(each.tallies for each in sent))
        received = yield Sending(
            to={owner: each.payload for owner, each in enumerate(sent) if owner != rank},
            singly=True,
            elements=sum(tally.sent for tally in self.spent.tallies),
            paper_bits=sum(tally.paper_bits for tally in self.spent.tallies),
            refused=self._refused(sent, self._out, self.ranges),
        )
        if rank >= len(self.ranges):
            return dict((yield Sending()))
        shard, compressor = self.ranges[rank], self._back[rank]
        total = self._sum(rank, {**received, rank: sent[rank].payload})
        pieces = list(torch.split(total, [piece.stop - piece.start for piece in shard.pieces]))
        returned = self._compress(compressor, pieces, iteration)
        received = yield Sending(
            to_all=returned.payload,
            paper_bits=sum(tally.paper_bits for tally in returned.tallies),
            refused=self._refused([returned], [compressor], [shard]),
        )
        return dict(received)

    def _refused(
        self, sent: Sequence[Outgoing], compressors: Sequence[FeedbackCompressor], ranges: Sequence[Shard]
    ) -> int | None:
        """If a range was refused, the parameter that was not finite (of the first such range)."""
        found = map(refused_by, sent, compressors, (shard.ordinals for shard in ranges))
        return next((each for each in found if each is not None), None)

    def _sum(self, owner: int, incoming: Received) -> Tensor:
        """The sum, or mean, of what all workers sent of an owner's range, added in rank order."""
        with self._clock("decode"):
            shard = self.ranges[owner]
            total = torch.zeros(shard.stop - shard.start, device=self.setting.like[0].device)
            for sender in range(self.setting.workers):
                self._add(self._out[owner], sender, incoming.get(sender, _NOTHING), total)
            if self.reduction == "mean":
                divide(total, self.setting.workers)
        return total

    def assemble(self, agreed: Result) -> Tensor:
        with self._clock("decode"):
            total = torch.zeros(self.ranges[-1].stop, device=self.setting.like[0].device)
            for owner, shard in enumerate(self.ranges):
                self._add(self._back[owner], owner, agreed[owner], total[shard.start : shard.stop])
        return total

    def parts(self) -> Parts:
        rank, out = self.setting.rank, zip(self.ranges, self._out, strict=True)
        found = {str(i): part for i, part in enumerate(out)}
        if rank < len(self.ranges):
            found[BACK] = self.ranges[rank], self._back[rank]
        return found
