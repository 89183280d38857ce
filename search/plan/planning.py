"""Predicts all ways to train over all links, and sorts them by the time of a step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .calibrated import HALF, Calibration
from .candidates import Candidate
from .link import Link
from .memory import worker_bytes
from .step_model import StepTime, step_time


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
        """The fastest of those that exchange in each step, compressed or not."""
        return next(each for each in self.predictions if each.candidate.each_step)

    @property
    def best_local(self) -> Prediction | None:
        """The fastest of those with local steps."""
        return next((each for each in self.predictions if not each.candidate.each_step), None)

    @property
    def pays(self) -> bool:
        """Whether compressing what is exchanged in each step is faster than both all-reduces."""
        return self.best.candidate.compresses

    def times_faster(self, prediction: Prediction) -> float:
        """How many times faster the best one is than the 16-bit all-reduce."""
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
        Comparison(
            link,
            count,
            tuple(
                sorted(
                    (predict(calibration, each, link, count) for each in candidates),
                    key=lambda each: each.seconds,
                )
            ),
        )
        for link in links
        for count in workers
    ]


def predict(calibration: Calibration, candidate: Candidate, link: Link, workers: int) -> Prediction:
    """Predicts one candidate; for errors see `plan`."""
    work = calibration.methods[candidate.method]
    return Prediction(
        candidate,
        link,
        workers,
        step_time(calibration, work, candidate.sync, link, workers),
        worker_bytes(calibration, work, candidate.sync, workers),
    )


def crossing(
    calibration: Calibration, one: Candidate, other: Candidate, workers: int, delay: float = 0.0
) -> float | None:
    """The rate, in bits per second, from which `other` is as fast as `one`; None if there is none.

    It is sought between 10 kbit/s and 1 Tbit/s. On slow links, `one` must be the faster one.

    Args:
        calibration: of the model.
        one: such as a compressed exchange.
        other: such as an all-reduce.
        workers: how many.
        delay: of the links, seconds.
    """

    def ahead(rate: float) -> bool:
        link = Link(rate=rate, delay=delay)
        pair = (predict(calibration, each, link, workers).seconds for each in (one, other))
        mine, theirs = pair
        return mine < theirs

    low, high = 1e4, 1e12
    if not ahead(low) or ahead(high):
        return None
    for _ in range(80):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if ahead(middle) else (low, middle)
    return high
