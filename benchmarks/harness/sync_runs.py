"""Training runs for platform/synchronization.py: by real processes on the loopback interface, or simulated.

Neither Ray nor MLflow takes part; the trainer is the platform's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.base import InRounds
from taugrad.platform.tracking import names

from .in_process import Following, fit
from .report import say
from .workers import found_by


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    real: tuple[int, ...]
    """Numbers of workers that are processes."""
    simulated: tuple[int, ...]
    many: tuple[int, ...]
    """Numbers of simulated workers that are trained with all-gather and shards only."""
    epochs: int
    """Of the runs whose accuracy is shown."""
    data: Mapping[str, Any]
    """Fields of the spec; none: the digits."""


def make_spec(sizes: Sizes, mode: str, line: str, workers: int, *, simulated: bool, **more: Any) -> RunSpec:
    """A run with LeNet.

    Args:
        sizes: what to train on.
        mode: who sends to whom.
        line: the method.
        workers: how many.
        simulated: all in one process.
        more: other fields of the spec.
    """
    sync: dict[str, Any] = {"mode": mode}
    fields: dict[str, Any] = {
        **sizes.data,
        "sync": {"mode": "simulated", "of": sync} if simulated else sync,
        "compressor": line,
        "workers": {"count": workers},
        "training": {"epochs": 1, "batch_size": 64},
    }
    return RunSpec.model_validate(fields | more)


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    workers: int
    parameters: int
    steps: int
    accuracy: float
    """On the test examples, at the end; a fraction."""
    elements: int
    """That all workers sent of their own gradients or differences."""
    wire_bytes: int
    received_bytes: int
    """By all workers together."""
    messages: int
    busiest_bytes: int
    """Received by the worker that received most, in messages alone; 0 where DDP's hook exchanged."""
    compression_ratio: float

    @property
    def received_a_step(self) -> float:
        """Bytes that a worker received in a step, mean of the workers."""
        return self.received_bytes / self.workers / self.steps

    @property
    def messages_a_step(self) -> float:
        """Messages of all workers."""
        return self.messages / self.steps


def train(specs: Sequence[RunSpec]) -> list[Outcome]:
    """Trains specs of equally many processes, one after the other, in processes that end with this call."""
    (processes,) = {spec.processes for spec in specs}
    texts = [spec.model_dump_json() for spec in specs]
    return [Outcome(**values) for values in found_by(_work, (texts,), processes)[0]]


def _work(texts: Sequence[str]) -> list[dict[str, Any]]:
    outcomes = []
    for text in texts:
        outcomes.append(asdict(_train(text)))
        if dist.get_rank() == 0:
            say(f"  {len(outcomes)} of {len(texts)} trainings")
    return outcomes


def _train(text: str) -> Outcome:
    listener = Following()
    trainer = fit(text, listener)
    totals = trainer.sync.totals
    return Outcome(
        workers=trainer.sync.workers,
        parameters=totals.elements // totals.steps // trainer.sync.workers,
        steps=totals.steps,
        accuracy=listener.last[names.EVAL_ACCURACY],
        elements=totals.sent,
        wire_bytes=totals.wire_bytes,
        received_bytes=totals.received_bytes,
        messages=totals.messages,
        busiest_bytes=_busiest(trainer.sync) if isinstance(trainer.sync, InRounds) else 0,
        compression_ratio=totals.compression_ratio,
    )


def _busiest(sync: InRounds) -> int:
    received = torch.from_numpy(sync.ledger.traffic.link_bytes.sum(0))
    if len(sync.ranks) == 1:  # each process knows what itself sent
        dist.all_reduce(received)
    return int(received.max())
