"""Seconds of one exchange between workers, as gloo and this package carry it out.

Every worker has a link of its own into a middle that is never full. A link carries what leaves a worker and
what arrives at it at the same time; messages that share it in one direction go one after the other.

Where sites are joined by trunks, a site's trunk carries what leaves its workers for other sites, and likewise
what arrives for them. What goes round in a ring meets each trunk once each way.

Gloo sends nothing before it has heard that the receiver is ready, so that a message of m bytes takes
2 d + m / r with delay d and rate r, or d + m / r where the receiver said so steps before, as the hook's do.
"""

import math
from dataclasses import dataclass

from taugrad.compressors.wire.gathering import SIZE_BYTES

from .link import Link

_SEGMENT_BYTES = 1 << 20
"""Gloo's all-reduce cuts a tensor into segments of at most so many bytes."""
_IN_FLIGHT = 2
"""Segments that gloo has under way at once, in an all-reduce and in an all-gather."""
_HEAD_BYTES = 48
"""What a worker tells all others before a round (platform/synchronization/rounds.py)."""
_PASSED_BYTES = 56
"""What a worker of a ring tells the next one before a message, in the half where it is more."""


@dataclass(frozen=True)
class Exchange:
    """What one exchange asks of the network.

    Attributes:
        link_s: seconds in which the busiest worker's link is full.
        wait_s: seconds besides, in which the exchange waits and its link could serve another one.
        received: bytes that arrive at a worker, mean of the workers.
        busiest: bytes that arrive at, or leave, the worker that has most.
    """

    link_s: float
    wait_s: float
    received: float
    busiest: float

    @property
    def seconds(self) -> float:
        """Seconds that it takes alone."""
        return self.link_s + self.wait_s

    def __add__(self, other: "Exchange") -> "Exchange":
        """One after the other."""
        return Exchange(
            self.link_s + other.link_s,
            self.wait_s + other.wait_s,
            self.received + other.received,
            self.busiest + other.busiest,
        )


NOTHING = Exchange(0.0, 0.0, 0.0, 0.0)


def all_reduce(link: Link, workers: int, nbytes: float, processing_s: float = 0.0) -> Exchange:
    """Gloo's ring all-reduce of a tensor.

    2 (N - 1) times a worker sends 1/N of the tensor to the next one, in segments of which two are under way
    at once: two segments take 2 x on a full link, and 2 d + x where waiting for readiness takes longer.

    Args:
        link: of every worker.
        workers: N.
        nbytes: of the tensor.
        processing_s: seconds of a processor for all the tensor: to move it and to add it up.
    """
    if workers == 1 or not nbytes:
        return NOTHING
    link = link.farthest(workers)
    least = max(math.ceil(nbytes / _SEGMENT_BYTES), _IN_FLIGHT * workers)
    segments = math.ceil(least / workers) * (workers - 1)
    share = nbytes * (workers - 1) / workers
    half = _windowed(link, segments, share / segments, processing_s / least)
    return half + half


def told_to_all(link: Link, workers: int, nbytes: float) -> Exchange:
    """Gloo's all-gather of tensors of one length: N - 1 times a worker passes one on, in two segments."""
    if workers == 1:
        return NOTHING
    return _windowed(link.farthest(workers), _IN_FLIGHT * (workers - 1), nbytes / _IN_FLIGHT, 0.0)


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
    """Every worker's message to every other one, to each other site once and handed on there.

    Each worker sends as many messages as it does without: to its site, to its counterparts at the others, and
    for these what it hands on.

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


def gathered(link: Link, workers: int, nbytes: float, form: str = "exact", longest: float = 1.0) -> Exchange:
    """One bucket's messages through the hook.

    Args:
        link: of every worker.
        workers: how many.
        nbytes: of a message, mean of the workers.
        form: `sync.exchange`: exact, one_shot (through gloo the same), padded or hierarchical.
        longest: of padded messages, how many times as long as the mean the longest one is.
    """
    if workers == 1:
        return NOTHING
    if form == "padded":
        lengths = told_to_all(link, workers, SIZE_BYTES)
        return lengths + told_to_all(link, workers, nbytes * longest)
    if form == "hierarchical":
        return between_sites(link, workers, nbytes + SIZE_BYTES)
    return to_all(link, workers, nbytes + SIZE_BYTES, ready=True)


def sharded(link: Link, workers: int, out: float, back: float) -> Exchange:
    """A part to its owner, and the part's sum to all; two rounds.

    Args:
        link: of every worker.
        workers: N.
        out: bytes of a worker's messages about all of its gradient.
        back: bytes of all messages about the sum.
    """
    others = workers - 1
    told = _round_told(link, workers, single=True) + _round_told(link, workers, single=False)
    return (
        told + _to_each(link, workers, out / workers, 2) + _to_each(link, workers, back / workers, 2)
        if others
        else NOTHING
    )


def parameter_server(link: Link, workers: int, out: float, back: float) -> Exchange:
    """All messages to worker 0, and the sum's message back to all; worker 0's link is the neck."""
    if workers == 1:
        return NOTHING
    others = workers - 1
    told = _round_told(link, workers, single=True) + _round_told(link, workers, single=True)
    crossing = 0 if link.trunk is None else workers - link.trunk.workers_of_site(workers)
    there, returned = (_straight(link, others, each, 2, crossing) for each in (out, back))
    mean = others / workers * (out + back)
    return Exchange(
        told.link_s + there.link_s + returned.link_s,
        told.wait_s + there.wait_s + returned.wait_s,
        told.received + mean,
        told.busiest + max(there.busiest, returned.busiest),
    )


def in_a_round(link: Link, workers: int, nbytes: float) -> Exchange:
    """Every worker's message to every other one, after all have told how long theirs are: mode weights."""
    if workers == 1:
        return NOTHING
    return _round_told(link, workers, single=False) + to_all(link, workers, nbytes)


def in_rounds_between_sites(link: Link, workers: int, nbytes: float) -> Exchange:
    """The same from site to site: lengths are told before each of the two rounds."""
    if workers == 1:
        return NOTHING
    told = _round_told(link, workers, single=True)
    return told + told + between_sites(link, workers, nbytes, ready=False)


def ring(link: Link, workers: int, nbytes: float) -> Exchange:
    """This package's own ring: 2 (N - 1) times 1/N of the messages, each after its length.

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


def _round_told(link: Link, workers: int, *, single: bool) -> Exchange:
    """The numbers before a round; `single`: and how long each message to a single worker is."""
    told = told_to_all(link, workers, _HEAD_BYTES)
    return told + _to_each(link, workers, SIZE_BYTES, 2) if single else told


def _to_each(link: Link, workers: int, nbytes: float, delays: int) -> Exchange:
    """A message of every worker to every other one."""
    here = workers if link.trunk is None else link.trunk.workers_of_site(workers)
    return _straight(link, workers - 1, nbytes, delays, link.crossing(workers - here, workers))


def _straight(link: Link, messages: int, nbytes: float, delays: int, crossing: int = 0) -> Exchange:
    """So many messages that leave, or reach, one worker at once, each over a connection of its own.

    Args:
        link: of the worker.
        messages: how many.
        nbytes: of each.
        delays: how often the delay is waited for.
        crossing: how many messages of that length a site's trunk carries meanwhile.
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
    """Segments one after the other over one connection, of which _IN_FLIGHT are under way."""
    full = nbytes / link.payload_rate()
    link_s, trip = segments * full, 2 * link.delay + full + processing_s
    in_pairs = math.ceil(segments / _IN_FLIGHT) * trip + (full if segments % _IN_FLIGHT == 0 else 0.0)
    waiting = max(link_s + trip - full, in_pairs)
    return Exchange(link_s, waiting - link_s, segments * nbytes, segments * nbytes)
