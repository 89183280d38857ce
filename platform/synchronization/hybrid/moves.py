"""How a worker communicates while it computes: it posts payloads, continues, and fetches what others posted.

All workers know the shapes, and so the lengths. A worker's iteration is a generator of these moves. `Posts`
runs it over carriers, between processes or in one process.
"""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from taugrad.compressors.exchange.carrier import Carrier, Payload
from taugrad.compressors.exchange.rounds import Received
from taugrad.compressors.exchange.runner import Runner
from taugrad.compressors.exchange.traffic import Traffic
from taugrad.compressors.spans import RECORDER, Interval, seconds, united

T = TypeVar("T")


@dataclass(frozen=True)
class Post:
    """Starts to send payloads. All workers make the same posts in the same order."""

    channel: int
    """The number by which it is fetched: unique in the iteration, and the same on every worker."""
    label: str
    """A label for timelines."""
    payloads: Mapping[int, Payload]
    """By receiver."""
    lengths: NDArray[np.int64]
    """int64 [workers, workers], bytes from row to column, of all workers; 0 for nothing."""
    to_all: bool
    """Whether all receivers get the same payload, which then counts once as handed over."""
    counts_as_values: bool
    """Whether they are activations or their gradients, not labels or numbers."""

    @classmethod
    def to_everybody(
        cls, channel: int, label: str, rank: int, payload: Payload, sizes: Sequence[int], *, values: bool
    ) -> "Post":
        """A worker's payload to every other one; `sizes` are the bytes of each worker's, by rank."""
        to = {other: payload for other in range(len(sizes)) if other != rank and payload.size}
        lengths = np.repeat(np.asarray(sizes, np.int64)[:, None], len(sizes), axis=1)
        np.fill_diagonal(lengths, 0)
        return cls(channel, label, to, lengths, to_all=True, counts_as_values=values)


@dataclass(frozen=True)
class Fetch:
    """Waits until what was posted to this worker has arrived, and its own payloads have left."""

    channel: int


Move = Post | Fetch
Moves = Generator[Move, Received | None, T]
"""A worker's side. A `Fetch` returns payloads by sender, a `Post` returns nothing."""


def fetched(channel: int) -> Moves[Received]:
    """What the others posted to this worker."""
    received = yield Fetch(channel)
    assert received is not None
    return received


@dataclass
class Course:
    """Times of one worker's exchanges of activations in an iteration."""

    blocked_s: float = 0.0
    """The part of `exchange_s` in which nothing was computed."""
    _under_way: list[Interval] = field(default_factory=list)

    @property
    def exchange_s(self) -> float:
        """Seconds during which anything was under way, from posting to fetching."""
        return seconds(united(self._under_way))

    def fetched(self, label: str, posted: float, asked: float) -> None:
        """Notes what has just arrived.

        Args:
            label: what it is.
            posted: when it was posted.
            asked: when the worker began to wait for it.
        """
        now = perf_counter()
        self.blocked_s += now - asked
        self._under_way.append((posted, now))
        RECORDER.add("exchange", "wire", posted, now, label)
        RECORDER.add("wait", "compute", asked, now)


@dataclass(frozen=True)
class _Pending:
    """What one worker has posted, and what it will fetch."""

    post: Post
    posted: float
    arriving: Mapping[int, Future[Payload]]


class Posts:
    """Runs the iterations of this process's workers, which all make the same moves."""

    def __init__(self, runner: Runner) -> None:
        """Sends over the runner's carriers."""
        self._carriers = runner.carriers
        self._takes_time = len(runner.ranks) < runner.workers

    def run(self, participants: Sequence[Moves[T]], courses: Sequence[Course], traffic: Traffic) -> list[T]:
        """Runs all moves.

        Args:
            participants: one for each rank of this process.
            courses: one for each rank of this process; the times are written there.
            traffic: counts what is sent.

        Returns:
            What each side returned.

        Raises:
            PeerLost: another worker is gone, or has been silent for too long.
        """
        pending: dict[int, list[_Pending]] = {}
        answers: list[Received | None] = [None] * len(participants)
        while True:
            moves: list[Move] = []
            results: list[T] = []
            for side, answer in zip(participants, answers, strict=True):
                try:
                    moves.append(side.send(answer))
                except StopIteration as end:
                    results.append(end.value)
            if not moves:
                assert not pending, "what is posted is fetched"
                return results
            assert len(moves) == len(participants), "every worker has as many moves as the others"
            posts = [move for move in moves if isinstance(move, Post)]
            if posts:
                count(traffic, posts[0])
                pending[posts[0].channel] = [
                    self._post(*each) for each in zip(self._carriers, posts, strict=True)
                ]
                answers = [None] * len(participants)
            else:
                fetched = pending.pop(moves[0].channel)
                answers = [self._fetch(*each) for each in zip(fetched, courses, strict=True)]

    @staticmethod
    def _post(carrier: Carrier, post: Post) -> _Pending:
        check(post, carrier.rank)
        tag = f"channel {post.channel}"
        for other in carrier.others:
            if post.lengths[carrier.rank, other]:
                carrier.send(other, tag, post.payloads[other])
        sources = [each for each in carrier.others if post.lengths[each, carrier.rank]]
        arriving = {source: carrier.receive(source, tag) for source in sources}
        return _Pending(post, perf_counter(), arriving)

    def _fetch(self, pending: _Pending, course: Course) -> Received:
        asked = perf_counter()
        arrived = {source: message.result() for source, message in pending.arriving.items()}
        if arrived and self._takes_time:
            course.fetched(pending.post.label, pending.posted, asked)
        return arrived


def count(traffic: Traffic, post: Post) -> None:
    """Counts a post of all workers; each process knows what the others send."""
    sent = post.lengths.max(axis=1) if post.to_all else post.lengths.sum(axis=1)
    handed_over = int(sent.sum())
    traffic.wire_bytes += handed_over
    traffic.paper_bits += 8 * handed_over * post.counts_as_values
    traffic.received_bytes += int(post.lengths.sum())
    traffic.messages += int((post.lengths > 0).sum())
    traffic.link_bytes += post.lengths
    traffic.link_messages += post.lengths > 0


def check(post: Post, rank: int) -> None:
    """Fails if a payload is not as long as the others expect: they would wait forever."""
    for receiver, expected in enumerate(post.lengths[rank].tolist()):
        size = post.payloads[receiver].size if receiver in post.payloads else 0
        assert size == expected, f"{post.label}: {size} bytes to worker {receiver}, which expects {expected}"
