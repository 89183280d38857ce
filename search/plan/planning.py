"""Predicts all ways to train over all links, and sorts them by the time of a step."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..advice import CLEARLY, pattern_of
from .calibrated import HALF, Calibration
from .candidate import Candidate
from .link import Link
from .memory import worker_bytes
from .step_model import StepTime, island_size, step_time


@dataclass(frozen=True)
class Prediction:
    """One candidate over one link.

    Attributes:
        candidate: the way to train.
        link: of every worker.
        workers: how many.
        step: its time and bytes.
        memory: bytes of a worker, without activations.
    """

    candidate: Candidate
    link: Link
    workers: int
    step: StepTime
    memory: float

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.step.seconds

    @property
    def to_target(self) -> float:
        """Seconds for what an uncompressed step learns, as far as is known; infinite: never advised."""
        return self.seconds / self.candidate.value if self.candidate.value else math.inf


@dataclass(frozen=True)
class Comparison:
    """All candidates over one link with one number of workers, the fastest first."""

    link: Link
    workers: int
    predictions: tuple[Prediction, ...]

    def of(self, method: str) -> Prediction:
        """The prediction of an all-reduce; raises StopIteration if it was not among the candidates."""
        return next(
            each
            for each in self.predictions
            if each.candidate.method == method and each.candidate.mode == "all-reduce"
        )

    @property
    def baseline(self) -> Prediction:
        """The faster of the all-reduces in float32 and in 16 bits."""
        return min(self.of("none"), self.of(HALF), key=lambda each: each.seconds)

    @property
    def best(self) -> Prediction:
        """What is advised: the usual way, unless the all-reduce or another way is clearly ahead of it."""
        found = [(each.to_target, each.candidate.usual) for each in self.predictions]
        return self.predictions[advised(found, self.baseline.seconds)]

    @property
    def pays(self) -> bool:
        """Whether anything is expected to be faster to a target than both all-reduces."""
        return self.best.candidate.compresses

    def times_faster(self, prediction: Prediction) -> float:
        """How many times faster than a step by the 16-bit all-reduce."""
        return self.of(HALF).seconds / prediction.seconds


def plan(
    calibration: Calibration,
    candidates: Sequence[Candidate],
    links: Iterable[Link],
    workers: Sequence[int],
) -> list[Comparison]:
    """Predicts every candidate on every link with every number of workers.

    Args:
        calibration: has all methods of the candidates.
        candidates: the ways to train, including both all-reduces (`candidates_of`).
        links: of every worker.
        workers: how many.

    Raises:
        CannotPlan: a mode is not modelled.
        KeyError: the calibration has not measured a method.
    """
    return [
        Comparison(link, count, tuple(_compared(calibration, candidates, link, count)))
        for link in links
        for count in workers
    ]


def advised(found: Sequence[tuple[float, bool]], exact: float) -> int:
    """The place of what is advised among ways.

    Args:
        found: for each way its seconds for what an uncompressed step learns, and whether it is the usual one.
        exact: the same of the fastest all-reduce.
    """
    places = range(len(found))
    fastest = min(places, key=lambda place: found[place][0])
    bound = min(exact, CLEARLY * found[fastest][0])
    return next((place for place in places if found[place][1] and found[place][0] < bound), fastest)


def _compared(
    calibration: Calibration, candidates: Sequence[Candidate], link: Link, workers: int
) -> list[Prediction]:
    """The fastest first; of those by the advice that learn alike, one."""
    fitting = [each for each in candidates if is_for(each, link, workers)]
    made = sorted((predict(calibration, each, link, workers) for each in fitting), key=lambda p: p.seconds)
    first = {each.candidate.twins: each for each in reversed(made)}
    return [each for each in made if first[each.candidate.twins] is each]


def is_for(candidate: Candidate, link: Link, workers: int) -> bool:
    """Whether it is to be compared there: the advice says who sends to whom after local steps.

    Islands have two workers or more each, equally many, and there are two or more.
    """
    if getattr(candidate.sync, "island", None) is not None:
        size = island_size(candidate.sync, link, workers)
        return 1 < size < workers and workers % size == 0
    if candidate.each_step or not candidate.family:
        return True
    trunk = link.trunk
    delay = link.delay + (trunk.link.delay if trunk else 0.0)
    return candidate.sync.pattern_name == pattern_of(workers, delay, trunk.sites if trunk else 1)


def predict(calibration: Calibration, candidate: Candidate, link: Link, workers: int) -> Prediction:
    """Predicts one candidate; for errors see `plan`."""
    work = calibration.methods[candidate.method]
    return Prediction(
        candidate,
        link,
        workers,
        step_time(calibration, work, candidate.sync, link, workers),
        worker_bytes(calibration, work, candidate.sync, workers, island_size(candidate.sync, link, workers)),
    )
