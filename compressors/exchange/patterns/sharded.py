"""Every worker owns a part of the elements, and adds them up for all (Krizhevsky's 1/K shards).

Strom's workers send each update to all others, so what a worker receives grows with the number of workers
(section 4). Here, a worker sends the update of a range only to the owner of the range. The owner sends the
compressed sum to all, and keeps what the compression leaves out in a residual of its own. So nothing is lost,
neither on the way to the owner nor on the way back.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from torch import Tensor

from ...method import Method
from ..rounds import Result, Rounds, Sending
from .base import BACK, Part, Pattern, Setting

_NOTHING = np.empty(0, np.uint8)


class Sharded(Pattern):
    """Two rounds: to the owners, and from them to all. With one owner it is a parameter server."""

    def __init__(self, method: Method, back: Method, setting: Setting, owners: int | None) -> None:
        """Cuts the elements among the owners, from worker 0 on; None stands for all workers.

        Workers send by the one method, owners by the other.
        """
        super().__init__(method, setting)
        self._out, self._back = (self._cut(each, owners or setting.workers) for each in (method, back))

    def rounds(self, gradients: Sequence[Tensor], iteration: int) -> Rounds:
        rank, self._refused = self.setting.rank, None
        sent = [self._compress(part, part.shard.of(gradients), iteration) for part in self._out]
        del gradients  # in a simulation, many workers wait here at the same time
        self.spent.tallies = list(chain.from_iterable(each.tallies for each in sent))
        received = yield Sending(
            to={owner: each.payload for owner, each in enumerate(sent) if owner != rank},
            singly=True,
            elements=sum(tally.sent for tally in self.spent.tallies),
            paper_bits=sum(tally.paper_bits for tally in self.spent.tallies),
            refused=self._refused,
        )
        if rank >= len(self._out):
            return dict((yield Sending()))
        nothing = dict.fromkeys(range(self.setting.workers), _NOTHING)
        with self._clock("decode"):
            incoming = {**nothing, **received, rank: sent[rank].payload}
            total = self._sum(self._out[rank], incoming, self._divisor)
        back = self._back[rank]
        returned = self._compress(back, back.shard.split(total), iteration)
        received = yield Sending(
            to_all=returned.payload,
            paper_bits=sum(tally.paper_bits for tally in returned.tallies),
            refused=self._refused,
        )
        return dict(received)

    def assemble(self, agreed: Result) -> Tensor:
        return self._joined(self._back, agreed)

    def parts(self) -> dict[str, Part]:
        rank = self.setting.rank
        own = {BACK: self._back[rank]} if rank < len(self._back) else {}
        return {**{str(i): part for i, part in enumerate(self._out)}, **own}
