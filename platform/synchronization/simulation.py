"""All workers in one process, a round at a time (Anoosheh, section 2.2)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from .rounds import Agreed, Crew, Received, Sending, Side, Traffic

Counting = Literal["rounds", "gather", "all-reduce"]
"""Whose bytes are counted: our rounds', or those that the DDP hook's exchange would have, which gathers
messages padded to the longest one, or without compression leaves the gradient to torch's all-reduce."""


class SimulatedCrew(Crew):
    """Hands over in memory what real workers would send."""

    def __init__(self, workers: int, counting: Counting = "rounds") -> None:
        """Takes in all workers.

        Args:
            workers: how many.
            counting: see there.
        """
        self.workers, self.ranks, self._counting = workers, range(workers), counting

    def run(self, sides: Sequence[Side], traffic: Traffic) -> Agreed:
        """See `Crew.run`."""
        while True:
            sendings = [side.sending for side in sides if side.sending is not None]
            if not sendings:
                return sides[0].agreed
            assert len(sendings) == len(sides), "every worker has as many rounds as the others"
            sizes = _sizes(sendings)
            heads = np.array([sending.head() for sending in sendings], np.int64)
            match self._counting:
                case "rounds":
                    traffic.count(heads, sizes)
                case "gather":
                    traffic.count_padded(heads)
                case "all-reduce":
                    traffic.count_all_reduce(heads)
            to_all = {src: each.to_all for src, each in enumerate(sendings) if each.to_all is not None}
            for rank, side in enumerate(sides):
                side.receive(to_all if sizes is None else _arriving(sendings, to_all, rank))

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to do: whoever runs the workers keeps worker 0's."""


def _sizes(sendings: Sequence[Sending]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]] | None:
    if not any(sending.to for sending in sendings):
        return None
    sizes = np.zeros((len(sendings), len(sendings)), np.int64)
    for src, sending in enumerate(sendings):
        for receiver, payload in sending.to.items():
            sizes[src, receiver] = payload.size
    return sizes


def _arriving(sendings: Sequence[Sending], to_all: Received, rank: int) -> Received:
    return {**to_all, **{src: each.to[rank] for src, each in enumerate(sendings) if rank in each.to}}
