"""Runs rounds with all workers in one process (Anoosheh, section 2.2)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.exchange.buckets import ExchangeForm
from taugrad.compressors.exchange.sites import Sites

from .links import Links
from .rounds import HEAD, Agreed, Crew, Heads, Known, Passed, Passing, Received, Sending, Side, Traffic

Counting = Literal["rounds", "all-reduce"] | ExchangeForm
"""Whose bytes are counted: our rounds', or those that the DDP hook's exchange would have: in one of its
forms, without compression torch's all-reduce."""


class SimulatedCrew(Crew):
    """Passes on in memory what real workers would send."""

    def __init__(self, workers: int, counting: Counting = "rounds", sites: Sites | None = None) -> None:
        """Takes in all workers.

        Args:
            workers: how many.
            counting: see there.
            sites: where they are, for the form hierarchical; by default all at one.
        """
        self.workers, self.ranks, self._counting = workers, range(workers), counting
        self._sites = Sites.one(workers) if sites is None else sites

    def run(self, sides: Sequence[Side], traffic: Traffic) -> Agreed:
        """See `Crew.run`."""
        while True:
            moves = [side.move for side in sides if side.move is not None]
            if not moves:
                return sides[0].agreed
            assert len(moves) == len(sides), "every worker has as many rounds as the others"
            if isinstance(moves[0], Known):
                traffic.count_known(moves[0])
                for side in sides:
                    side.receive({})
                continue
            passings = [move for move in moves if isinstance(move, Passing)]
            if passings:
                for rank, (side, passing) in enumerate(zip(sides, passings, strict=True)):
                    size = passing.payload.size
                    traffic.count_passed(rank, passing.receiver, size, passing.told_bytes)
                    arriving = passings[passing.sender]
                    side.receive(Passed(passing.sender, arriving.payload, arriving.note))
                continue
            sendings = [move for move in moves if isinstance(move, Sending)]
            sizes = _sizes(sendings)
            heads = np.array([sending.head() for sending in sendings], HEAD)
            self._count(traffic, heads, sizes)
            to_all = {src: each.to_all for src, each in enumerate(sendings) if each.to_all is not None}
            for rank, side in enumerate(sides):
                side.receive(to_all if sizes is None else _arriving(sendings, to_all, rank))

    def _count(self, traffic: Traffic, heads: Heads, sizes: NDArray[np.int64] | None) -> None:
        if self._counting == "rounds":
            traffic.count(heads, sizes)
        elif self._counting == "all-reduce":
            traffic.count_all_reduce(heads)
        else:
            traffic.count_gathered(heads, heads["to_all"], self._sites)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Nothing to do: whoever runs the workers keeps worker 0's."""

    def links(self, traffic: Traffic) -> Links | None:
        """See `Crew.links`."""
        if self._counting not in ("rounds", "hierarchical"):
            return None
        others = ~np.eye(self.workers, dtype=bool)
        return Links(traffic.link_messages * others, (traffic.link_bytes + traffic.link_told) * others)


def _sizes(sendings: Sequence[Sending]) -> NDArray[np.int64] | None:
    if not any(sending.singly for sending in sendings):
        return None
    sizes = np.zeros((len(sendings), len(sendings)), np.int64)
    for src, sending in enumerate(sendings):
        for receiver, payload in sending.to.items():
            sizes[src, receiver] = payload.size
    return sizes


def _arriving(sendings: Sequence[Sending], to_all: Received, rank: int) -> Received:
    return {**to_all, **{src: each.to[rank] for src, each in enumerate(sendings) if rank in each.to}}
