"""Training runs for platform/asynchronous.py: real workers of which some are slow, or simulated ones.

Neither Ray nor MLflow takes part; the trainer is the platform's. Real workers sleep in each step as long as
its computing would take on a machine of their own, so that a few cores stand for many.
"""

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from time import perf_counter, sleep
from typing import Any, Literal

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from taugrad.platform.data import DataSet
from taugrad.platform.data import load as load_data
from taugrad.platform.data.config import DataConfig
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.asynchronous.mode import AsynchronousTraining
from taugrad.platform.synchronization.hooked import HookedGradients
from taugrad.platform.tracking import names
from taugrad.platform.training.replica import Replica
from taugrad.platform.training.trainer import Trainer

from ..harness.sync_runs import Silent
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


class Watching(Silent):
    """A listener that keeps the last evaluation, and all figures of staleness."""

    def __init__(self) -> None:
        super().__init__()
        self.staleness: list[float] = []
        self.most = 0.0

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Keeps two of them."""
        if names.COMM_STALENESS in metrics:
            self.staleness.append(metrics[names.COMM_STALENESS])
            self.most = max(self.most, metrics[names.COMM_STALENESS_MOST])


def train(specs: Sequence[RunSpec], paces: Sequence[Pace]) -> list[Outcome]:
    """Trains specs of equally many processes, one after the other, in processes that end with this call."""
    (processes,) = {spec.processes for spec in specs}
    texts = [spec.model_dump_json() for spec in specs]
    return [Outcome(**values) for values in found_by(_work, (texts, list(paces)), processes)[0]]


def _work(texts: Sequence[str], paces: Sequence[Pace]) -> list[dict[str, Any]]:
    outcomes = []
    for text, pace in zip(texts, paces, strict=True):
        spec = RunSpec.model_validate_json(text)
        outcomes.append(asdict(_train_here(spec, pace)))
        if dist.get_rank() == 0:
            print(f"        {spec.sync.mode}, {pace}", file=sys.stderr)
    return outcomes


def _train_here(spec: RunSpec, pace: Pace) -> Outcome:
    listener = Watching()
    trainer = Trainer(spec, _data(spec.data.model_dump_json()), torch.device("cpu"), listener)
    if pace.step_s:
        _slow_down(_replica(trainer), pace, dist.get_rank(), dist.get_world_size())
    dist.barrier()
    began = perf_counter()
    trainer.fit()
    seconds = perf_counter() - began
    totals, ages = trainer.sync.totals, listener.staleness
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


@cache
def _data(config: str) -> DataSet:
    adapter: TypeAdapter[DataConfig] = TypeAdapter(DataConfig)
    return load_data(adapter.validate_json(config))
