"""Every worker owns a range of the elements, and sums that up for all (Krizhevsky's 1/K shards).

Strom's workers send each update to all others, so that what a worker receives grows with their number
(section 4). Here it sends only to the owner of a range; the owner sends the compressed sum to all, and
keeps what that leaves out in a residual of its own: nothing is lost on the way out or back.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors.bucket.feedback import FeedbackCompressor
from taugrad.compressors.config import Method

from ..pieces import Shard, cut
from ..rounds import Agreed, Payload, Received, Rounds, Sending
from .base import Pattern, Setting, divide, refused_by

_NOTHING = np.empty(0, np.uint8)


class Sharded(Pattern):
    """Two rounds: to the owners, and from them to all. With one owner it is a parameter server."""

    def __init__(self, method: Method, back: Method, setting: Setting, owners: int) -> None:
        """Cuts the elements among the owners.

        Args:
            method: what workers send by.
            back: what owners send by.
            setting: see there.
            owners: worker 0 and those behind it; all workers for shards, 1 for a parameter server.
        """
        super().__init__(method, setting)
        self._shards = cut(setting.sizes, owners)
        self._out = [self._compressor(method, shard) for shard in self._shards]
        self._back = [self._compressor(back, shard) for shard in self._shards]

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        """See `Pattern.rounds`."""
        rank, tallies, refused = self.setting.rank, [], None
        payloads: dict[int, Payload] = {}
        for owner, (shard, compressor) in enumerate(zip(self._shards, self._out, strict=True)):
            own = self._compress(compressor, shard.of(gradients), iteration)
            tallies += own.tallies
            refused = refused_by(own, compressor, shard.ordinals) if refused is None else refused
            payloads[owner] = own.payload
        del gradients  # many workers may wait here, simulated in one process
        self.spent.tallies = tallies
        received = yield Sending(
            to={owner: payload for owner, payload in payloads.items() if owner != rank},
            elements=sum(tally.sent for tally in tallies),
            paper_bits=sum(tally.paper_bits for tally in tallies),
            refused=refused,
        )
        if rank >= len(self._shards):
            return dict((yield Sending()))
        shard, compressor = self._shards[rank], self._back[rank]
        total = self._sum(received, payloads[rank])
        pieces = list(torch.split(total, [piece.stop - piece.start for piece in shard.pieces]))
        own = self._compress(compressor, pieces, iteration)
        received = yield Sending(
            to_all=own.payload,
            paper_bits=sum(tally.paper_bits for tally in own.tallies),
            refused=refused_by(own, compressor, shard.ordinals),
        )
        return dict(received)

    def _sum(self, received: Received, own: Payload) -> Tensor:
        """What all workers sent of this worker's range, added in rank order."""
        rank = self.setting.rank
        with self._clock("decompress_s"):
            total = self._zeros(self._shards[rank])
            for sender in range(self.setting.workers):
                payload = own if sender == rank else received.get(sender, _NOTHING)
                self._add(self._out[rank], sender, payload, total)
            if self.reduction == "mean":
                divide(total, self.setting.workers)
        return total

    def assemble(self, agreed: Agreed) -> Tensor:
        """See `Pattern.assemble`."""
        with self._clock("decompress_s"):
            total = torch.zeros(self._shards[-1].stop, device=self.setting.like[0].device)
            for owner, shard in enumerate(self._shards):
                self._add(self._back[owner], owner, agreed[owner], total[shard.start : shard.stop])
        return total

    def _zeros(self, shard: Shard) -> Tensor:
        return torch.zeros(shard.stop - shard.start, device=self.setting.like[0].device)

    def unsent(self) -> list[Tensor]:
        """See `Pattern.unsent`; what an owner has not sent back is everybody's, and not in it."""
        return self._unsent(self._shards, self._out)

    def compressors(self) -> list[FeedbackCompressor]:
        """See `Pattern.compressors`."""
        rank = self.setting.rank
        return [*self._out, *self._back[rank : rank + 1]]
