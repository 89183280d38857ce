"""Ring all-reduce of our own, plain or compressed at every hop (Rae, section 2.1; Gibiansky 2017).

Elements are cut into one chunk a worker. In the first half (reduce-scatter) a chunk goes round once: each
worker adds its own gradient to the partial sum that it received, and passes it on. In the second half
(all-gather) the sums go round as they are.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from taugrad.compressors.bucket import Outgoing
from taugrad.compressors.config import AnyMethod
from taugrad.compressors.feedback import FeedbackCompressor

from ..pieces import cut
from ..rounds import Agreed, Payload, Rounds, Sending
from .base import Pattern, Setting, divide, refused_by

_NOTHING = np.empty(0, np.uint8)


class Ring(Pattern):
    """2 (N - 1) rounds, each to the next worker.

    A compressed sum is compressed anew at each hop. What that leaves out stays in the residual of the worker
    that did it: every worker compresses every chunk once, so its residual is as long as the gradient.
    """

    def __init__(self, method: AnyMethod, setting: Setting) -> None:
        super().__init__(method, setting)
        self._chunks = cut(setting.sizes, setting.workers)
        self._hops = [self._compressor(method, chunk) for chunk in self._chunks]

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        """See `Pattern.rounds`."""
        rank, workers = self.setting.rank, self.setting.workers
        after, before = (rank + 1) % workers, (rank - 1) % workers
        self.spent.tallies = []
        own = self._pass_on(rank, gradients, None, iteration)
        for hop in range(workers - 1):
            received = yield self._sending(after, own, (rank - hop) % workers)
            chunk = (rank - hop - 1) % workers
            partial = received.get(before, _NOTHING)
            own = self._pass_on(chunk, gradients, (before, partial), iteration)
        del gradients
        summed = (rank + 1) % workers
        agreed = {summed: own.payload}
        sending = self._sending(after, own, summed)
        for chunk in [(rank - hop) % workers for hop in range(workers - 1)]:
            received = yield sending
            agreed[chunk] = received.get(before, _NOTHING)
            sending = Sending(to={after: agreed[chunk]})
        if workers == 1:
            yield sending  # it may say that there is no update
        return agreed

    def _pass_on(
        self, chunk: int, gradients: Sequence[Tensor], partial: tuple[int, Payload] | None, iteration: int
    ) -> Outgoing:
        """The partial sum with this worker's gradient added, compressed."""
        pieces = self._chunks[chunk].of(gradients)
        if partial is not None:
            with self._clock("decompress_s"):
                shard = self._chunks[chunk]
                total = torch.zeros(shard.stop - shard.start, device=self.setting.like[0].device)
                self._add(self._hops[chunk], *partial, total)
                sums = torch.split(total, [piece.stop - piece.start for piece in shard.pieces])
                pieces = [received + own for received, own in zip(sums, pieces, strict=True)]
        own = self._compress(self._hops[chunk], pieces, iteration)
        self.spent.tallies += own.tallies
        return own

    def _sending(self, receiver: int, own: Outgoing, chunk: int) -> Sending:
        return Sending(
            to={} if receiver == self.setting.rank else {receiver: own.payload},
            elements=sum(tally.sent for tally in own.tallies),
            paper_bits=sum(tally.paper_bits for tally in own.tallies),
            refused=refused_by(own, self._hops[chunk], self._chunks[chunk].ordinals),
        )

    def assemble(self, agreed: Agreed) -> Tensor:
        """See `Pattern.assemble`."""
        with self._clock("decompress_s"):
            total = torch.zeros(self._chunks[-1].stop, device=self.setting.like[0].device)
            for number, chunk in enumerate(self._chunks):
                self._add(self._hops[number], number, agreed[number], total[chunk.start : chunk.stop])
            if self.reduction == "mean":
                divide(total, self.setting.workers)
        return total

    def compressors(self) -> list[FeedbackCompressor]:
        """See `Pattern.compressors`."""
        return self._hops
