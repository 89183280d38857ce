"""Seconds of one exchange between workers, as this package and gloo's all-reduce do it.

Every worker has its own link into a network that is never full. A link carries outgoing and incoming messages
at the same time. Messages in the same direction go one after the other.

If sites are connected by trunks, a site's trunk carries the messages between its workers and those of other
sites. In a ring, everything passes each trunk once in each direction.

With delay d and rate r, a message of m bytes takes d + m / r: the carrier sends without a request. Gloo sends
nothing before it has heard that the receiver is ready: a segment of its all-reduce takes 2 d + m / r.

Throughout, `link` is that of every worker, `workers` their number N, and `nbytes` the mean size of a message.
"""

import math
from dataclasses import dataclass

from .link import Link

_SEGMENT_BYTES = 1 << 20
"""The largest segments, in bytes, into which gloo's all-reduce cuts a tensor."""
_IN_FLIGHT = 2
"""Number of segments that gloo has under way at the same time in an all-reduce."""


@dataclass(frozen=True)
class Exchange:
    """The cost of an exchange.

    Attributes:
        link_s: seconds in which the link of the busiest worker is full.
        wait_s: additional seconds in which the exchange waits, and the link could serve another exchange.
        received: bytes that arrive at a worker, mean of the workers.
    """

    link_s: float
    wait_s: float
    received: float

    @property
    def seconds(self) -> float:
        """Seconds that the exchange takes by itself."""
        return self.link_s + self.wait_s

    def __add__(self, other: "Exchange") -> "Exchange":
        """The cost of two exchanges, one after the other."""
        return Exchange(
            self.link_s + other.link_s, self.wait_s + other.wait_s, self.received + other.received
        )

    def __mul__(self, times: int) -> "Exchange":
        """The cost of several such exchanges, one after the other."""
        return Exchange(times * self.link_s, times * self.wait_s, times * self.received)


NOTHING = Exchange(0.0, 0.0, 0.0)


def all_reduce(link: Link, workers: int, nbytes: float, processing_s: float = 0.0) -> Exchange:
    """Gloo's ring all-reduce of a tensor of `nbytes`, which takes `processing_s` to move and add.

    A worker sends 1/N of the tensor to the next one 2 (N - 1) times, in segments of which two are under way
    at the same time. If a segment takes x, two segments take 2 x on a full link, or 2 d + x if waiting for
    the receiver takes longer.
    """
    if workers == 1 or not nbytes:
        return NOTHING
    link = link.farthest(workers)
    least = max(math.ceil(nbytes / _SEGMENT_BYTES), _IN_FLIGHT * workers)
    segments = math.ceil(least / workers) * (workers - 1)
    share = nbytes * (workers - 1) / workers
    return _windowed(link, segments, share / segments, processing_s / least) * 2


def to_all(link: Link, workers: int, nbytes: float) -> Exchange:
    """Every worker's message to every other one, at once."""
    in_site = workers if link.trunk is None else link.trunk.workers_of_site(workers)
    return _parallel(link, workers - 1, nbytes, link.crossing(workers - in_site, workers))


def between_sites(link: Link, workers: int, nbytes: float) -> Exchange:
    """Every worker's message to every other one; it goes to each other site once, and is forwarded there.

    Each worker sends as many messages as without sites: to its own site, to its counterparts at the other
    sites, and the forwarded messages.
    """
    if link.trunk is None or workers == 1:
        return to_all(link, workers, nbytes)
    crossing = link.crossing(link.trunk.others(workers), workers)
    return _parallel(link, workers - 1, nbytes, crossing) + Exchange(0.0, link.delay, 0.0)


def gathered(link: Link, workers: int, nbytes: float, pattern: str = "allgather") -> Exchange:
    """An all-gather of messages by the pattern allgather or hierarchical."""
    return (between_sites if pattern == "hierarchical" else to_all)(link, workers, nbytes)


def in_an_island(link: Link, workers: int, size: int, nbytes: float, processing_s: float = 0.0) -> Exchange:
    """A reduce-scatter and an all-gather of a tensor among an island's `size` workers.

    Without sites, the link is the one between islands, and only `processing_s` counts.
    """
    if size == 1 or link.trunk is None:
        return Exchange(0.0, 0.0 if size == 1 else processing_s, 0.0)
    in_site = size <= link.trunk.workers_of_site(workers)
    island_link = link.model_copy(update={"trunk": None}) if in_site else link
    return all_reduce(island_link, size, nbytes, processing_s)


def between_islands(link: Link, workers: int, size: int, nbytes: float) -> Exchange:
    """Every worker's message about its shard, to the workers with the same shard in the other islands.

    An island has `size` workers, and its messages about all shards `nbytes`.
    """
    count, crossing = workers // size, 0
    if link.trunk is not None:
        in_site = max(1, link.trunk.workers_of_site(workers) // size)
        crossing = link.crossing(count - in_site, workers)
    return _parallel(link, count - 1, nbytes / size, crossing)


def sharded(link: Link, workers: int, out: float, back: float) -> Exchange:
    """Two rounds: each part to its owner, and the part's sum from the owner to all.

    `out` are the bytes of a worker's messages about all of its gradient, `back` those about the sum.
    """
    return to_all(link, workers, out / workers) + to_all(link, workers, back / workers)


def parameter_server(link: Link, workers: int, out: float, back: float) -> Exchange:
    """Messages of `out` bytes to worker 0, whose link is the bottleneck, and `back` bytes to all others."""
    others = workers - 1
    crossing = 0 if link.trunk is None else workers - link.trunk.workers_of_site(workers)
    both = _parallel(link, others, out, crossing) + _parallel(link, others, back, crossing)
    return Exchange(both.link_s, both.wait_s, both.received / workers)


def ring(link: Link, workers: int, nbytes: float) -> Exchange:
    """Our own ring: 2 (N - 1) messages of 1/N of `nbytes` each."""
    return _parallel(link, 1, nbytes / workers, 1) * (2 * (workers - 1))


def _parallel(link: Link, messages: int, nbytes: float, crossing: int = 0) -> Exchange:
    """Messages that leave or reach one worker at the same time, each over a connection of its own.

    A site's trunk carries `crossing` messages of that size in the same time.
    """
    if not messages:
        return NOTHING
    total = messages * nbytes
    link_s, delay = total / link.payload_rate(messages), link.delay
    if link.trunk is not None:
        between = link.trunk.link
        link_s = max(link_s, crossing * nbytes / between.payload_rate(max(1, crossing)))
        delay += between.delay
    return Exchange(link_s, delay, total)


def _windowed(link: Link, segments: int, nbytes: float, processing_s: float) -> Exchange:
    """Segments that go over one connection, of which _IN_FLIGHT are under way at the same time."""
    full = nbytes / link.payload_rate()
    link_s, trip = segments * full, 2 * link.delay + full + processing_s
    in_pairs = math.ceil(segments / _IN_FLIGHT) * trip + (full if segments % _IN_FLIGHT == 0 else 0.0)
    waiting = max(link_s + trip - full, in_pairs)
    return Exchange(link_s, waiting - link_s, segments * nbytes)
