"""Predicts all ways to train over all links, and sorts them by the time of a step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..advice import CLEARLY, pattern_of
from .calibrated import HALF, Calibration
from .candidate import Candidate
from .link import Link
from .step_model import island_size, step_time, worker_bytes


@dataclass(frozen=True)
class Comparison:
    """All candidates over one link with one number of workers, the fastest first."""

    link: Link
    workers: int
    candidates: tuple[Candidate, ...]

    def of(self, method: str) -> Candidate:
        """The prediction of an all-reduce, which must be among the candidates."""
        return next(
            candidate
            for candidate in self.candidates
            if candidate.method == method and candidate.mode == "all-reduce"
        )

    @property
    def baseline(self) -> Candidate:
        """The faster of the all-reduces in float32 and in 16 bits."""
        return min(self.of("none"), self.of(HALF), key=lambda candidate: candidate.seconds)

    @property
    def best(self) -> Candidate:
        """The advised way: the usual one, unless the all-reduce or another way is clearly faster."""
        return advised(self.candidates, self.baseline.seconds)

    @property
    def pays(self) -> bool:
        """Whether a compressed way is expected to be faster to a target than both all-reduces."""
        return self.best.compresses

    def times_faster(self, candidate: Candidate) -> float:
        """The speedup of a step against the 16-bit all-reduce."""
        return self.of(HALF).seconds / candidate.seconds


def plan(
    calibration: Calibration, candidates: Sequence[Candidate], links: Iterable[Link], workers: Sequence[int]
) -> list[Comparison]:
    """Predicts every candidate (`compared_candidates`) on every link with every number of workers.

    Raises:
        ValueError: a mode is not modelled.
        KeyError: the calibration has not measured a method.
    """
    return [
        Comparison(link, count, tuple(_compared(calibration, candidates, link, count)))
        for link in links
        for count in workers
    ]


def advised(candidates: Sequence[Candidate], exact_s: float) -> Candidate:
    """The usual candidate, unless an all-reduce is faster to a target, or another one clearly faster.

    Args:
        candidates: predicted.
        exact_s: seconds of a step by the fastest all-reduce.
    """
    fastest = min(candidates, key=lambda candidate: candidate.to_target)
    bound = min(exact_s, CLEARLY * fastest.to_target)
    usual = (candidate for candidate in candidates if candidate.usual and candidate.to_target < bound)
    return next(usual, fastest)


def _compared(
    calibration: Calibration, candidates: Sequence[Candidate], link: Link, workers: int
) -> list[Candidate]:
    """The fastest first; without slower ways that learn like a faster one."""
    made = predicted(calibration, candidates, link, workers)
    first = {candidate.twins: candidate for candidate in reversed(made)}
    return [candidate for candidate in made if first[candidate.twins] is candidate]


def predicted(
    calibration: Calibration, candidates: Sequence[Candidate], link: Link, workers: int
) -> list[Candidate]:
    """Predicts the candidates that are for a link, the fastest first; raises as `plan` does."""
    fitting = (candidate for candidate in candidates if is_for(candidate, link, workers))
    known = [predict(calibration, candidate, link, workers) for candidate in fitting]
    return sorted(known, key=lambda candidate: candidate.seconds)


def is_for(candidate: Candidate, link: Link, workers: int) -> bool:
    """Whether a way is compared on a link: with the advised pattern after local steps.

    Islands must be several, of equal size, and of two workers or more.
    """
    if getattr(candidate.sync, "island", None) is not None:
        size = island_size(candidate.sync, link, workers)
        return 1 < size < workers and workers % size == 0
    if candidate.each_step or not candidate.family:
        return True
    trunk = link.trunk
    delay = link.delay + (trunk.link.delay if trunk else 0.0)
    return candidate.sync.pattern_name == pattern_of(workers, delay, trunk.sites if trunk else 1)


def predict(calibration: Calibration, candidate: Candidate, link: Link, workers: int) -> Candidate:
    """Predicts a candidate's step and memory over a link; raises as `plan` does."""
    work, sync = calibration.methods[candidate.method], candidate.sync
    return replace(
        candidate,
        predicted=step_time(calibration, work, sync, link, workers),
        memory=worker_bytes(calibration, work, sync, workers, island_size(sync, link, workers)),
    )
