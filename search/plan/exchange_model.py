"""Seconds of one exchange between workers, as this package and gloo's all-reduce do it.

Every worker has its own link into a network that is never full. A link carries outgoing and incoming messages
at the same time. Messages in the same direction go one after the other.

If sites are connected by trunks, a site's trunk carries what its workers send to other sites, and what they
receive from there. In a ring, everything passes each trunk once in each direction.

With delay d and rate r, a message of m bytes takes d + m / r: the carrier asks nobody before it sends. Gloo
sends nothing before it has heard that the receiver is ready: a segment of its all-reduce takes 2 d + m / r.
"""

import math
from dataclasses import dataclass, replace

from .link import Link

_SEGMENT_BYTES = 1 << 20
"""The largest segments, in bytes, into which gloo's all-reduce cuts a tensor."""
_IN_FLIGHT = 2
"""Number of segments that gloo has under way at the same time in an all-reduce."""
_HEAD_BYTES = 48
"""Bytes with which a message of a round begins (compressors/exchange/rounds.py)."""


@dataclass(frozen=True)
class Exchange:
    """What one exchange costs.

    Attributes:
        link_s: seconds in which the link of the busiest worker is full.
        wait_s: additional seconds in which the exchange waits, and the link could serve another exchange.
        received: bytes that arrive at a worker, mean of the workers.
        busiest: bytes that arrive at or leave the busiest worker.
    """

    link_s: float
    wait_s: float
    received: float
    busiest: float

    @property
    def seconds(self) -> float:
        """Seconds that the exchange takes by itself."""
        return self.link_s + self.wait_s

    def __add__(self, other: "Exchange") -> "Exchange":
        """The cost of two exchanges, one after the other."""
        return Exchange(
            self.link_s + other.link_s,
            self.wait_s + other.wait_s,
            self.received + other.received,
            self.busiest + other.busiest,
        )


NOTHING = Exchange(0.0, 0.0, 0.0, 0.0)


def all_reduce(link: Link, workers: int, nbytes: float, processing_s: float = 0.0) -> Exchange:
    """Gloo's ring all-reduce of a tensor.

    A worker sends 1/N of the tensor to the next one 2 (N - 1) times, in segments of which two are under way
    at the same time. If a segment takes x, two segments take 2 x on a full link, or 2 d + x if waiting for
    the receiver takes longer.

    Args:
        link: of every worker.
        workers: N.
        nbytes: of the tensor.
        processing_s: processor seconds to move and add the whole tensor.
    """
    if workers == 1 or not nbytes:
        return NOTHING
    link = link.farthest(workers)
    least = max(math.ceil(nbytes / _SEGMENT_BYTES), _IN_FLIGHT * workers)
    segments = math.ceil(least / workers) * (workers - 1)
    share = nbytes * (workers - 1) / workers
    half = _windowed(link, segments, share / segments, processing_s / least)
    return half + half


def to_all(link: Link, workers: int, nbytes: float) -> Exchange:
    """Every worker's message to every other one, at once.

    Args:
        link: of every worker.
        workers: how many.
        nbytes: of a message, mean of the workers.
    """
    here = workers if link.trunk is None else link.trunk.workers_of_site(workers)
    return _straight(link, workers - 1, nbytes, link.crossing(workers - here, workers))


def between_sites(link: Link, workers: int, nbytes: float) -> Exchange:
    """Every worker's message to every other one; it goes to each other site once, and is forwarded there.

    Each worker sends as many messages as without sites: to its own site, to its counterparts at the other
    sites, and the forwarded messages.

    Args:
        link: of every worker, with its trunk.
        workers: how many.
        nbytes: of a message, mean of the workers.
    """
    if link.trunk is None or workers == 1:
        return to_all(link, workers, nbytes)
    crossing = link.crossing(link.trunk.others(workers), workers)
    handed_on = Exchange(0.0, link.delay, 0.0, 0.0)
    return _straight(link, workers - 1, nbytes, crossing) + handed_on


def in_an_island(link: Link, workers: int, size: int, nbytes: float, processing_s: float = 0.0) -> Exchange:
    """A reduce-scatter and an all-gather of a tensor among an island's workers, as in an all-reduce.

    Without sites, the link is the one between islands, and only the processor counts.

    Args:
        link: of every worker.
        workers: of all islands.
        size: workers of an island.
        nbytes: of the tensor.
        processing_s: processor seconds to move and add the whole tensor.
    """
    if size == 1 or link.trunk is None:
        return Exchange(0.0, 0.0 if size == 1 else processing_s, 0.0, 0.0)
    island_link = (
        link.model_copy(update={"trunk": None}) if size <= link.trunk.workers_of_site(workers) else link
    )
    return all_reduce(island_link, size, nbytes, processing_s)


def between_islands(link: Link, workers: int, size: int, nbytes: float) -> Exchange:
    """Every worker's message about its shard, to those that have the same shard in the other islands.

    Args:
        link: of every worker.
        workers: of all islands.
        size: workers of an island.
        nbytes: of the messages about all shards of an island.
    """
    count, crossing = workers // size, 0
    if link.trunk is not None:
        here = max(1, link.trunk.workers_of_site(workers) // size)
        crossing = link.crossing(count - here, workers)
    return _straight(link, count - 1, nbytes / size, crossing)


def gathered(link: Link, workers: int, nbytes: float, form: str = "exact") -> Exchange:
    """One bucket's messages through the hook.

    Args:
        link: of every worker.
        workers: how many.
        nbytes: of a message, mean of the workers.
        form: `sync.exchange`: exact or hierarchical.
    """
    return (between_sites if form == "hierarchical" else to_all)(link, workers, nbytes)


def sharded(link: Link, workers: int, out: float, back: float) -> Exchange:
    """Two rounds: each part to its owner, and the part's sum from the owner to all.

    Args:
        link: of every worker.
        workers: N.
        out: bytes of a worker's messages about all of its gradient.
        back: bytes of all messages about the sum.
    """
    return in_a_round(link, workers, out / workers) + in_a_round(link, workers, back / workers)


def parameter_server(link: Link, workers: int, out: float, back: float) -> Exchange:
    """All messages to worker 0, and the sum back to all. Worker 0's link is the bottleneck."""
    others = workers - 1
    heads = in_a_round(link, workers, 0.0)
    crossing = 0 if link.trunk is None else workers - link.trunk.workers_of_site(workers)
    sent, returned = (_straight(link, others, part, crossing) for part in (out, back))
    mean = others / workers * (out + back)
    return Exchange(
        2 * heads.link_s + sent.link_s + returned.link_s,
        sent.wait_s + returned.wait_s,
        2 * heads.received + mean,
        2 * heads.busiest + max(sent.busiest, returned.busiest),
    )


def in_a_round(link: Link, workers: int, nbytes: float) -> Exchange:
    """Every worker's message to every other one, in a round (mode weights)."""
    return to_all(link, workers, _HEAD_BYTES + nbytes)


def in_rounds_between_sites(link: Link, workers: int, nbytes: float) -> Exchange:
    """The same between sites, in two rounds."""
    heads = replace(in_a_round(link, workers, 0.0), wait_s=0.0)
    return heads + heads + between_sites(link, workers, nbytes)


def ring(link: Link, workers: int, nbytes: float) -> Exchange:
    """Our own ring: 2 (N - 1) messages of 1/N each.

    Args:
        link: of every worker.
        workers: N.
        nbytes: of all N messages of a half: M where they are as long as one about all of the gradient.
    """
    if workers == 1:
        return NOTHING
    adding = _straight(link, 1, nbytes / workers, 1)
    sums = _straight(link, 1, _HEAD_BYTES + nbytes / workers, 1)
    both, hops = adding + sums, workers - 1
    return Exchange(hops * both.link_s, hops * both.wait_s, hops * both.received, hops * both.busiest)


def _straight(link: Link, messages: int, nbytes: float, crossing: int = 0) -> Exchange:
    """Messages that leave or reach one worker at the same time, each over a connection of its own.

    Args:
        link: of the worker.
        messages: how many.
        nbytes: of each.
        crossing: how many messages of that length a site's trunk carries in the same time.
    """
    if not messages:
        return NOTHING
    every = messages * nbytes
    link_s, delay = every / link.payload_rate(messages), link.delay
    if link.trunk is not None:
        between = link.trunk.link
        link_s = max(link_s, crossing * nbytes / between.payload_rate(max(1, crossing)))
        delay += between.delay
    return Exchange(link_s, delay, every, every)


def _windowed(link: Link, segments: int, nbytes: float, processing_s: float) -> Exchange:
    """Segments that go over one connection, of which _IN_FLIGHT are under way at the same time."""
    full = nbytes / link.payload_rate()
    link_s, trip = segments * full, 2 * link.delay + full + processing_s
    in_pairs = math.ceil(segments / _IN_FLIGHT) * trip + (full if segments % _IN_FLIGHT == 0 else 0.0)
    waiting = max(link_s + trip - full, in_pairs)
    return Exchange(link_s, waiting - link_s, segments * nbytes, segments * nbytes)
