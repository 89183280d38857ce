"""Training runs for platform/asynchronous.py: real workers of which some are slow, or simulated ones.

Neither Ray nor MLflow takes part; the trainer is the platform's. Real workers sleep in each step as long as
its computing would take on a machine of their own, so that a few cores stand for many.
"""

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from time import perf_counter, sleep
from typing import Any, Literal

import torch.distributed as dist

from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.asynchronous.mode import AsynchronousTraining
from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.tracking import names
from taugrad.platform.training.replica import Replica
from taugrad.platform.training.trainer import Trainer

from ..harness.in_process import Following, fit
from ..harness.report import say
from ..harness.workers import found_by

Slow = Literal["nobody", "one", "now and then"]
"""Who takes longer: nobody, worker 0 in each step, or in each step another worker, drawn alike by all."""


@dataclass(frozen=True)
class Pace:
    """How long real workers sleep in a step."""

    step_s: float
    slow: Slow
    times: float
    """As long a slow worker takes."""

    def of(self, rank: int, workers: int, number: int) -> float:
        """Seconds of one worker's step."""
        slow_one = {"nobody": None, "one": 0, "now and then": random.Random(number).randrange(workers)}
        return self.step_s * (self.times if rank == slow_one[self.slow] else 1)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    accuracy: float
    wire_bytes: int
    seconds_a_step: float
    """From the first iteration to the end, evaluations included, over the iterations."""
    staleness: float
    """Mean of all messages applied."""
    most: float


class Watching(Following):
    """A listener that keeps the last evaluation, and all figures of staleness; real workers have a pace."""

    def __init__(self, pace: Pace | None = None) -> None:
        super().__init__()
        self.pace, self.began = pace, 0.0
        self.staleness: list[float] = []
        self.most = 0.0

    def stage(self, name: str) -> None:
        """All begin together, once the workers are as slow as they shall be."""
        if name == "first iteration":
            if self.pace is not None:
                _slow_down(_replica(self.trainer), self.pace, dist.get_rank(), dist.get_world_size())
            dist.barrier()
            self.began = perf_counter()

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Keeps two of them."""
        if names.COMM_STALENESS in metrics:
            self.staleness.append(metrics[names.COMM_STALENESS])
            self.most = max(self.most, metrics[names.COMM_STALENESS_MOST])


def train(specs: Sequence[RunSpec], paces: Sequence[Pace | None]) -> list[Outcome]:
    """Trains specs of equally many processes, one after the other, in processes that end with this call."""
    (processes,) = {spec.processes for spec in specs}
    texts = [spec.model_dump_json() for spec in specs]
    return [Outcome(**values) for values in found_by(_work, (texts, list(paces)), processes)[0]]


def _work(texts: Sequence[str], paces: Sequence[Pace | None]) -> list[dict[str, Any]]:
    outcomes = []
    for text, pace in zip(texts, paces, strict=True):
        outcomes.append(asdict(_train(text, pace)))
        if dist.get_rank() == 0:
            say(f"  {len(outcomes)} of {len(texts)} trainings")
    return outcomes


def _train(text: str, pace: Pace | None) -> Outcome:
    listener = Watching(pace)
    totals = fit(text, listener).sync.totals
    seconds, ages = perf_counter() - listener.began, listener.staleness
    return Outcome(
        accuracy=listener.last[names.EVAL_ACCURACY],
        wire_bytes=totals.wire_bytes,
        seconds_a_step=seconds / totals.steps,
        staleness=sum(ages) / len(ages) if ages else 0.0,
        most=listener.most,
    )


def _replica(trainer: Trainer) -> Replica:
    """This process's worker's."""
    if isinstance(trainer.sync, AsynchronousTraining):
        return trainer.sync.workers_here[0].replica
    assert isinstance(trainer.sync, HookedGradients)
    return trainer.sync.replica


def _slow_down(replica: Replica, pace: Pace, rank: int, workers: int) -> None:
    backward: Callable[..., float] = replica.backward
    steps = iter(range(sys.maxsize))

    def slowly(*arguments: Any) -> float:
        sleep(pace.of(rank, workers, next(steps)))
        return backward(*arguments)

    replica.backward = slowly  # type: ignore[method-assign]
