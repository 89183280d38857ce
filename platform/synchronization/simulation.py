"""Runs rounds with all workers in one process (Anoosheh, section 2.2)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.exchange.buckets import ExchangeForm
from taugrad.compressors.exchange.memory import in_memory
from taugrad.compressors.exchange.sites import Sites

from .links import Links
from .rounds import Crew, Heads, Traffic

Counting = Literal["rounds", "all-reduce"] | ExchangeForm
"""Whose bytes are counted: our rounds', or those that the DDP hook's exchange would have: in one of its
forms, without compression torch's all-reduce."""


class SimulatedCrew(Crew):
    """All workers, over a carrier in memory."""

    def __init__(self, workers: int, counting: Counting = "rounds", sites: Sites | None = None) -> None:
        """Takes in all workers.

        Args:
            workers: how many.
            counting: see there.
            sites: where they are, for the form hierarchical; by default all at one.
        """
        super().__init__(in_memory(workers))
        self._counting = counting
        self._sites = Sites.one(workers) if sites is None else sites

    def _count(self, traffic: Traffic, heads: Heads, sizes: NDArray[np.int64] | None) -> None:
        if self._counting == "rounds":
            super()._count(traffic, heads, sizes)
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
