"""Sites: groups of workers that are connected by fast links, with slow links between the sites.

A worker sends its message to the others of its site, and to one worker of each other site, its counterpart,
which forwards it within that site. A message thus goes to each other site once, however many workers are
there. Neighbours have different counterparts, so the messages from another site are spread over a site's
workers. Imports neither NumPy nor torch: a spec is checked with it.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple


class Hop(NamedTuple):
    """One transfer of a worker's message, from rank to rank."""

    source: int
    """Who wrote the message."""
    sender: int
    receiver: int


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
    def by_place(cls, places: Sequence[Hashable]) -> "Sites":
        """A site for each place, by where each rank's worker is, such as the name of its host."""
        ranks: defaultdict[Hashable, list[int]] = defaultdict(list)
        for rank, place in enumerate(places):
            ranks[place].append(rank)
        return cls.of(list(ranks.values()), len(places))

    @cached_property
    def hops(self) -> list[Hop]:
        """All workers (workers - 1) transfers of one message a worker, ascending."""
        hops = []
        for site, other in product(self.members, self.members):
            for place, source in enumerate(site):
                counterpart = source if other == site else other[place % len(other)]
                receivers = [rank for rank in other if rank != source]
                hops += [Hop(source, source if to == counterpart else counterpart, to) for to in receivers]
        return sorted(hops)

    @property
    def sendings(self) -> int:
        """How often messages are handed to the carrier: once by their authors and forwarders."""
        ranks = {(rank, rank) for site in self.members for rank in site}
        return len(ranks | {(hop.source, hop.sender) for hop in self.hops})

    def __str__(self) -> str:
        return str([list(site) for site in self.members])


def check_site_ranks(ranks: Sequence[Sequence[int]], workers: int) -> None:
    """Raises ValueError where a rank is in no site, in two, or is no worker's; or where a site is empty."""
    times = Counter(rank for site in ranks for rank in site)
    problems = {
        "in no site": set(range(workers)) - set(times),
        "in more than one place": {rank for rank, count in times.items() if count > 1},
        "of no worker": set(times) - set(range(workers)),
    }
    texts = [f"{', '.join(map(str, sorted(who)))} {what}" for what, who in problems.items() if who]
    if not all(ranks):
        texts.append("a site without workers")
    if texts:
        raise ValueError(
            f"sites = {[list(site) for site in ranks]}: {'; '.join(texts)}; with {workers} workers "
            f"each of the ranks 0 to {workers - 1} must be in one site"
        )
