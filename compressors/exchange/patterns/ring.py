"""Our own ring all-reduce, plain or compressed at every hop (Rae, section 2.1; Gibiansky 2017).

The elements are cut into as many chunks as there are workers. In the first half (reduce-scatter) each chunk
goes round once: every worker adds its own gradient to the partial sum that it received, and passes the sum
on. In the second half (all-gather) the finished sums go round unchanged.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from ...bucket.compressor import Outgoing
from ...method import Method
from ...wire.message import is_refusal
from ..carrier import Payload
from ..rounds import Passing, Result, Rounds
from ..traffic import HEAD, Head, Known
from .base import Part, Pattern, Setting


class Ring(Pattern):
    """2 (N - 1) rounds, each to the next worker.

    A sum is compressed again at each hop. What the compression leaves out stays in the residual of the worker
    that compressed. Every worker compresses every chunk once, so its residual is as long as the gradient.
    """

    def __init__(self, method: Method, setting: Setting) -> None:
        super().__init__(method, setting)
        self._chunks = self._cut(method, setting.workers)

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        """See `Pattern.rounds`.

        A worker talks to its neighbours only. The other workers' counts, and whether one of them has no
        update, go round with the sums: in the second half, each comes with the head of the worker that
        finished it.
        """
        rank, workers = self.setting.rank, self.setting.workers
        after, before = (rank + 1) % workers, (rank - 1) % workers
        self.spent.tallies = []
        self._refused = None
        own = self._pass_on(rank, gradients, None, iteration)
        sizes = []
        for hop in range(workers - 1):
            sizes.append(own.payload.size)
            received = yield Passing(after, before, own.payload)
            partial = before, received[before]
            own = self._pass_on((rank - hop - 1) % workers, gradients, partial, iteration)
        del gradients
        agreed = {(rank + 1) % workers: own.payload}
        heads = np.zeros(workers, HEAD)
        heads[rank] = self._head(sizes)
        message = np.concatenate([heads[rank : rank + 1].view(np.uint8), own.payload])
        for hop in range(workers - 1):
            received = yield Passing(after, before, message, HEAD.itemsize)
            message = received[before]
            agreed[(rank - hop) % workers] = message[HEAD.itemsize :]
            heads[(rank - hop - 1) % workers] = message[: HEAD.itemsize].view(HEAD)[0]
        # Each worker's sum was sent once for each hop of the second half.
        sums = np.array([agreed[(each + 1) % workers].size for each in range(workers)])
        heads["single_bytes"] += sums * (workers - 1)
        heads["single_messages"] += (sums > 0) * (workers - 1)
        yield Known(heads, workers * (workers - 1) * HEAD.itemsize)
        return agreed

    def _head(self, sizes: Sequence[int]) -> Head:
        """This worker's counts of the first half."""
        return Head(
            to_all=-1,
            elements=sum(tally.sent for tally in self.spent.tallies),
            paper_bits=sum(tally.paper_bits for tally in self.spent.tallies),
            refused=-1 if self._refused is None else self._refused,
            single_bytes=sum(sizes),
            single_messages=sum(size > 0 for size in sizes),
        )

    def _pass_on(
        self, chunk: int, gradients: Sequence[Tensor], partial: tuple[int, Payload] | None, iteration: int
    ) -> Outgoing:
        """The partial sum plus this worker's gradient, compressed; a refusal is passed on unchanged."""
        part = self._chunks[chunk]
        pieces = part.shard.of(gradients)
        if partial is not None:
            if is_refusal(partial[1]):
                return Outgoing(partial[1], part.compressor.layout, [])
            with self._clock("decode"):
                sums = part.shard.split(self._sum(part, dict([partial])))
                pieces = [received + own for received, own in zip(sums, pieces, strict=True)]
        own = self._compress(part, pieces, iteration)
        self.spent.tallies += own.tallies
        return own

    def assemble(self, agreed: Result) -> Tensor:
        return self._joined(self._chunks, agreed, self._divisor)

    def parts(self) -> dict[str, Part]:
        return {str(i): part for i, part in enumerate(self._chunks)}
