"""What a network is like: every host's link to the middle, and what lies between two sites."""

from dataclasses import dataclass

from taugrad.search.plan.link import Link

_JUMBO_BITS = 200e6
"""From this rate on frames are large, as they are on fast links: one process moves them all."""


@dataclass(frozen=True)
class Topology:
    """A network: half of a link's delay and loss lies on either side of the middle."""

    links: tuple[Link, ...]
    """Each host's."""
    sites: tuple[int, ...]
    """Where each host is: 0, or 0 and 1."""
    between: Link | None = None
    """What joins two sites; all their traffic shares it."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.links) <= 200:
            raise ValueError(f"{len(self.links)} hosts: must be 1 to 200")
        if len(self.sites) != len(self.links):
            raise ValueError(f"{len(self.sites)} sites for {len(self.links)} hosts")
        if set(self.sites) - {0, 1} or (1 in self.sites) != (self.between is not None):
            raise ValueError(f"sites {self.sites}: 0 and 1 with a link between them, or 0 alone without one")

    @property
    def in_kernel(self) -> bool:
        """Whether the kernel's shaping is enough: there is neither delay nor loss."""
        every = [*self.links, *([self.between] if self.between else [])]
        return not any(link.delay or link.loss for link in every)

    @property
    def mtu(self) -> int:
        """Bytes of the largest packet."""
        return 9000 if max(link.rate for link in self.links) >= _JUMBO_BITS else 1500

    def path(self, source: int, to: int) -> Link:
        """What lies between two hosts: the least rate, the delay one way, the loss."""
        ends = self.links[source], self.links[to]
        rate = min(link.rate for link in ends)
        delay = sum(link.delay for link in ends) / 2
        kept = ((1 - ends[0].loss) * (1 - ends[1].loss)) ** 0.5
        if self.between is not None and self.sites[source] != self.sites[to]:
            rate, delay = min(rate, self.between.rate), delay + self.between.delay
            kept *= 1 - self.between.loss
        return Link(rate=rate, delay=delay, loss=max(0.0, 1 - kept))


def uniform(hosts: int, link: Link) -> Topology:
    """So many hosts with the same link."""
    return Topology((link,) * hosts, (0,) * hosts)


def two_sites(at_each: int, link: Link, between: Link) -> Topology:
    """Two sites of so many hosts, and what joins them."""
    return Topology((link,) * (2 * at_each), (0,) * at_each + (1,) * at_each, between)
