"""Predicts all ways to train over all links, and sorts them by the time of a step."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..advice import CLEARLY, pattern_of
from .calibrated import HALF, Calibration
from .candidate import Candidate
from .link import Link
from .step_model import StepTime, island_size, step_time, worker_bytes


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
        """Expected seconds for what an uncompressed step learns; infinite: never advised."""
        return self.seconds / self.candidate.value if self.candidate.value else math.inf


@dataclass(frozen=True)
class Comparison:
    """All candidates over one link with one number of workers, the fastest first."""

    link: Link
    workers: int
    predictions: tuple[Prediction, ...]

    def of(self, method: str) -> Prediction:
        """The prediction of an all-reduce, which must be among the candidates."""
        return next(
            prediction
            for prediction in self.predictions
            if prediction.candidate.method == method and prediction.candidate.mode == "all-reduce"
        )

    @property
    def baseline(self) -> Prediction:
        """The faster of the all-reduces in float32 and in 16 bits."""
        return min(self.of("none"), self.of(HALF), key=lambda prediction: prediction.seconds)

    @property
    def best(self) -> Prediction:
        """The advised way: the usual one, unless the all-reduce or another way is clearly faster."""
        ways = [(prediction.to_target, prediction.candidate.usual) for prediction in self.predictions]
        return self.predictions[advised(ways, self.baseline.seconds)]

    @property
    def pays(self) -> bool:
        """Whether a compressed way is expected to be faster to a target than both all-reduces."""
        return self.best.candidate.compresses

    def times_faster(self, prediction: Prediction) -> float:
        """The speedup of a step against the 16-bit all-reduce."""
        return self.of(HALF).seconds / prediction.seconds


def plan(
    calibration: Calibration,
    candidates: Sequence[Candidate],
    links: Iterable[Link],
    workers: Sequence[int],
) -> list[Comparison]:
    """Predicts every candidate (`candidates_of`) on every link with every number of workers.

    Raises:
        CannotPlan: a mode is not modelled.
        KeyError: the calibration has not measured a method.
    """
    return [
        Comparison(link, count, tuple(_compared(calibration, candidates, link, count)))
        for link in links
        for count in workers
    ]


def advised(ways: Sequence[tuple[float, bool]], exact: float) -> int:
    """The index of the advised way.

    Args:
        ways: the seconds of each for what an uncompressed step learns, and whether it is the usual one.
        exact: the seconds of the fastest all-reduce.
    """
    places = range(len(ways))
    fastest = min(places, key=lambda place: ways[place][0])
    bound = min(exact, CLEARLY * ways[fastest][0])
    return next((place for place in places if ways[place][1] and ways[place][0] < bound), fastest)


def _compared(
    calibration: Calibration, candidates: Sequence[Candidate], link: Link, workers: int
) -> list[Prediction]:
    """The fastest first; without slower ways that learn like a faster one."""
    fitting = [candidate for candidate in candidates if is_for(candidate, link, workers)]
    made = sorted(
        (predict(calibration, candidate, link, workers) for candidate in fitting), key=lambda p: p.seconds
    )
    first = {prediction.candidate.twins: prediction for prediction in reversed(made)}
    return [prediction for prediction in made if first[prediction.candidate.twins] is prediction]


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


def predict(calibration: Calibration, candidate: Candidate, link: Link, workers: int) -> Prediction:
    """Predicts one candidate; raises as `plan` does."""
    work = calibration.methods[candidate.method]
    return Prediction(
        candidate,
        link,
        workers,
        step_time(calibration, work, candidate.sync, link, workers),
        worker_bytes(calibration, work, candidate.sync, workers, island_size(candidate.sync, link, workers)),
    )
