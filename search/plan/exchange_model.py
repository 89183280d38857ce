"""Seconds of one exchange between workers, as gloo and this package do it.

Every worker has its own link into a network that is never full. A link carries outgoing and incoming messages
at the same time. Messages in the same direction go one after the other.

If sites are connected by trunks, a site's trunk carries what its workers send to other sites, and what they
receive from there. In a ring, everything passes each trunk once in each direction.

Gloo sends nothing before it has heard that the receiver is ready. With delay d and rate r, a message of m
bytes therefore takes 2 d + m / r, or d + m / r if the receiver got ready in advance, as in the DDP hook and
in rounds.
"""

import math
from dataclasses import dataclass

from taugrad.compressors.wire.gathering import SIZE_BYTES
from taugrad.platform.synchronization.boxes import most_room

from .link import Link

_SEGMENT_BYTES = 1 << 20
"""The largest segments, in bytes, into which gloo's all-reduce cuts a tensor."""
_IN_FLIGHT = 2
"""Number of segments that gloo has under way at the same time, in an all-reduce and in an all-gather."""
_HEAD_BYTES = 48
"""Bytes that a worker announces to all others before a round (platform/synchronization/rounds.py)."""
_PASSED_BYTES = 56
"""Bytes that a worker of a ring announces to the next one before a message, in the second half."""


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


def to_all(link: Link, workers: int, nbytes: float, *, ready: bool = False) -> Exchange:
    """Every worker's message to every other one, at once.

    Args:
        link: of every worker.
        workers: how many.
        nbytes: of a message, mean of the workers.
        ready: whether receivers said before that they are ready.
    """
    return _to_each(link, workers, nbytes, 1 if ready else 2)


def between_sites(link: Link, workers: int, nbytes: float, *, ready: bool = True) -> Exchange:
    """Every worker's message to every other one; it goes to each other site once, and is forwarded there.

    Each worker sends as many messages as without sites: to its own site, to its counterparts at the other
    sites, and the forwarded messages.

    Args:
        link: of every worker, with its trunk.
        workers: how many.
        nbytes: of a message, mean of the workers.
        ready: whether receivers said before that they are ready.
    """
    if link.trunk is None or workers == 1:
        return to_all(link, workers, nbytes, ready=ready)
    delays = 1 if ready else 2
    crossing = link.crossing(link.trunk.others(workers), workers)
    handed_on = Exchange(0.0, delays * link.delay, 0.0, 0.0)
    return _straight(link, workers - 1, nbytes, delays, crossing) + handed_on


def gathered(link: Link, workers: int, nbytes: float, form: str = "exact") -> Exchange:
    """One bucket's messages through the hook.

    Args:
        link: of every worker.
        workers: how many.
        nbytes: of a message, mean of the workers.
        form: `sync.exchange`: exact or hierarchical.
    """
    if workers == 1:
        return NOTHING
    if form == "hierarchical":
        return between_sites(link, workers, nbytes + SIZE_BYTES)
    return to_all(link, workers, nbytes + SIZE_BYTES, ready=True)


def sharded(link: Link, workers: int, out: float, back: float) -> Exchange:
    """Two rounds: each part to its owner, and the part's sum from the owner to all.

    Args:
        link: of every worker.
        workers: N.
        out: bytes of a worker's messages about all of its gradient.
        back: bytes of all messages about the sum.
    """
    if workers == 1:
        return NOTHING
    return _round(link, workers, out / workers, single=True) + _round(link, workers, back / workers)


def parameter_server(link: Link, workers: int, out: float, back: float) -> Exchange:
    """All messages to worker 0, and the sum back to all. Worker 0's link is the bottleneck."""
    if workers == 1:
        return NOTHING
    others = workers - 1
    told = _told(link, workers, single=True) + _told(link, workers, single=False)
    crossing = 0 if link.trunk is None else workers - link.trunk.workers_of_site(workers)
    there, returned = (
        _straight(link, others, each, _delays(workers, each), crossing) for each in (out, back)
    )
    mean = others / workers * (out + back)
    return Exchange(
        told.link_s + there.link_s + returned.link_s,
        there.wait_s + returned.wait_s,
        told.received + mean,
        told.busiest + max(there.busiest, returned.busiest),
    )


def in_a_round(link: Link, workers: int, nbytes: float) -> Exchange:
    """Every worker's message to every other one, in a round (mode weights)."""
    return NOTHING if workers == 1 else _round(link, workers, nbytes)


def in_rounds_between_sites(link: Link, workers: int, nbytes: float) -> Exchange:
    """The same between sites, in two rounds."""
    if workers == 1:
        return NOTHING
    told = _told(link, workers, single=True)
    return told + told + between_sites(link, workers, nbytes, ready=_delays(workers, nbytes) == 1)


def ring(link: Link, workers: int, nbytes: float) -> Exchange:
    """Our own ring: 2 (N - 1) messages of 1/N each, every one after its length.

    Args:
        link: of every worker.
        workers: N.
        nbytes: of all N messages of a half: M where they are as long as one about all of the gradient.
    """
    if workers == 1:
        return NOTHING
    hop = _straight(link, 1, _PASSED_BYTES, 2, 1) + _straight(link, 1, nbytes / workers, 2, 1)
    hops = 2 * (workers - 1)
    return Exchange(hops * hop.link_s, hops * hop.wait_s, hops * hop.received, hops * hop.busiest)


def _round(link: Link, workers: int, nbytes: float, *, single: bool = False) -> Exchange:
    """A round of messages to all others, each with its numbers before it."""
    return _told(link, workers, single=single) + _to_each(link, workers, nbytes, _delays(workers, nbytes))


def _told(link: Link, workers: int, *, single: bool) -> Exchange:
    """The numbers before the messages of a round; with `single`, also the lengths for single workers."""
    return _to_each(link, workers, _HEAD_BYTES + (SIZE_BYTES if single else 0), 0)


def _delays(workers: int, nbytes: float) -> int:
    """How many delays a message of a round waits for: two more where its receiver has no room for it."""
    return 1 if nbytes <= most_room(workers) else 3


def _to_each(link: Link, workers: int, nbytes: float, delays: int) -> Exchange:
    """A message from every worker to every other one."""
    here = workers if link.trunk is None else link.trunk.workers_of_site(workers)
    return _straight(link, workers - 1, nbytes, delays, link.crossing(workers - here, workers))


def _straight(link: Link, messages: int, nbytes: float, delays: int, crossing: int = 0) -> Exchange:
    """Messages that leave or reach one worker at the same time, each over a connection of its own.

    Args:
        link: of the worker.
        messages: how many.
        nbytes: of each.
        delays: how many delays are waited for.
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
    return Exchange(link_s, delays * delay, every, every)


def _windowed(link: Link, segments: int, nbytes: float, processing_s: float) -> Exchange:
    """Segments that go over one connection, of which _IN_FLIGHT are under way at the same time."""
    full = nbytes / link.payload_rate()
    link_s, trip = segments * full, 2 * link.delay + full + processing_s
    in_pairs = math.ceil(segments / _IN_FLIGHT) * trip + (full if segments % _IN_FLIGHT == 0 else 0.0)
    waiting = max(link_s + trip - full, in_pairs)
    return Exchange(link_s, waiting - link_s, segments * nbytes, segments * nbytes)
