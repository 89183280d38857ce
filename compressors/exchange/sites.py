"""Sites: groups of workers that are connected by fast links, with slow links between the sites.

A worker sends its message to the others of its site, and to one worker of each other site, its counterpart,
which forwards it within that site. A message thus goes to each other site once, however many workers are
there. Neighbours have different counterparts, so the messages from another site are spread over a site's
workers.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .site_ranks import check_site_ranks


@dataclass(frozen=True)
class Sites:
    """The site of each worker, and the route of each worker's message. Use `of`, which checks its input."""

    members: tuple[tuple[int, ...], ...]
    """Ranks of each site, ascending; sites in the order of their first ranks."""

    @classmethod
    def of(cls, ranks: Sequence[Sequence[int]], workers: int) -> "Sites":
        """Sites by the ranks of each, in any order; raises ValueError as `check_site_ranks` does."""
        check_site_ranks(ranks, workers)
        return cls(tuple(sorted(tuple(sorted(site)) for site in ranks)))

    @classmethod
    def one(cls, workers: int) -> "Sites":
        """A single site of all workers: every message goes directly to everybody."""
        return cls((tuple(range(workers)),))

    @classmethod
    def by_place(cls, places: Sequence[Hashable]) -> "Sites":
        """A site for each place, by where each rank's worker is, such as the name of its host."""
        found: defaultdict[Hashable, list[int]] = defaultdict(list)
        for rank, place in enumerate(places):
            found[place].append(rank)
        return cls.of(list(found.values()), len(places))

    @property
    def workers(self) -> int:
        """How many there are at all sites."""
        return sum(map(len, self.members))

    @cached_property
    def hops(self) -> NDArray[np.int64]:
        """int64 [workers (workers - 1), 3]: every hop as source, from whom and to whom its message goes."""
        found = []
        for site, there in product(self.members, self.members):
            for place, source in enumerate(site):
                counterpart = source if there == site else there[place % len(there)]
                receivers = [to for to in there if to != source]
                found += [(source, source if to == counterpart else counterpart, to) for to in receivers]
        return np.array(sorted(found), np.int64).reshape(-1, 3)

    @cached_property
    def times_handed_over(self) -> NDArray[np.int64]:
        """int64 [workers]: how many workers hand each worker's message over: itself and who hands it on."""
        source, _ = np.unique(self.hops[:, :2], axis=0).T
        return np.maximum(1, np.bincount(source, minlength=self.workers))

    def over_links(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """What goes over each link, int64 [workers, workers] from row to column, of messages [workers]."""
        links = np.zeros((self.workers, self.workers), np.int64)
        source, sender, receiver = self.hops.T
        np.add.at(links, (sender, receiver), lengths[source])
        return links

    def __str__(self) -> str:
        return str([list(site) for site in self.members])
