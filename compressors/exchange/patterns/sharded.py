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
from ..rounds import Result, Rounds, Sending
from .base import BACK, Parts, Pattern, Setting, Shard, cut, refused_by

_NOTHING = np.empty(0, np.uint8)


class Sharded(Pattern):
    """Two rounds: to the owners, and from them to all. With one owner it is a parameter server.

    Attributes:
        ranges: by owner, the elements that it adds up.
    """

    def __init__(self, method: Method, back: Method, setting: Setting, owners: int | None) -> None:
        """Cuts the elements among the owners, from worker 0 on; None stands for all workers.

        Workers send by the one method, owners by the other.
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
        incoming = {**received, rank: sent[rank].payload}
        with self._clock("decode"):
            total = self._empty(shard.stop - shard.start)
            divisor = self.setting.workers if self.reduction == "mean" else 1
            by_rank = {each: incoming.get(each, _NOTHING) for each in range(self.setting.workers)}
            self._sum(self._out[rank], by_rank, total, divisor)
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

    def assemble(self, agreed: Result) -> Tensor:
        with self._clock("decode"):
            total = self._empty(self.ranges[-1].stop)
            for owner, (shard, back) in enumerate(zip(self.ranges, self._back, strict=True)):
                self._sum(back, {owner: agreed[owner]}, total[shard.start : shard.stop])
        return total

    def parts(self) -> Parts:
        rank, out = self.setting.rank, zip(self.ranges, self._out, strict=True)
        found = {str(i): part for i, part in enumerate(out)}
        if rank < len(self.ranges):
            found[BACK] = self.ranges[rank], self._back[rank]
        return found
