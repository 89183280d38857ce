"""A small training in the mode async, for tests: logistic regression on random examples, step by step."""

import hashlib
from functools import partial
from typing import Any

import torch
from torch import nn

from taugrad.platform.data.batch_plan import Position
from taugrad.platform.data.feeding import Batch
from taugrad.platform.data.shape import Shape
from taugrad.platform.models.building import build
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.synchronization.ledger import Iteration
from taugrad.platform.synchronization.synchronization import StepContext, Synchronization
from taugrad.platform.tasks import build_task

FEATURES, CLASSES, EXAMPLES = 6, 3, 5
RATE = 0.5


def spec_of(workers: int, sync: dict[str, Any], compressor: str = "strom(0.0625)") -> tuple[RunSpec, Shape]:
    """The run, and the shape of its data."""
    spec = RunSpec.model_validate(
        {
            "model": {"kind": "mlp", "widths": []},
            "training": {"optimizer": {"kind": "sgd", "lr": RATE, "momentum": 0, "weight_decay": 0}},
            "compressor": compressor,
            "workers": {"count": workers},
            "sync": sync,
        }
    )
    return spec, Shape.image(1, 2, 3, CLASSES)


def batch(rank: int, number: int) -> Batch:
    """A worker's examples of a step."""
    generator = torch.Generator().manual_seed(1000 * rank + number)
    inputs = torch.randn(EXAMPLES, 1, 2, 3, generator=generator)
    return Batch(inputs, torch.randint(CLASSES, (EXAMPLES,), generator=generator), 1.0)


def step_context(number: int, steps: int) -> StepContext:
    """Of a step in a run of one epoch."""
    return StepContext(
        Position(0, number, steps, number, EXAMPLES, steps), number + 1 == steps, observe=False
    )


def training_of(workers: int, sync: dict[str, Any], compressor: str = "strom(0.0625)") -> Synchronization:
    """This process's workers of it, before their first step."""
    spec, shape = spec_of(workers, sync, compressor)
    torch.manual_seed(0)
    model: nn.Module = build(spec.model, shape)
    training, _ = build_synchronization(spec, model, build_task(spec.task, shape), torch.device("cpu"))
    return training


def run(training: Synchronization, first: int, last: int, steps: int) -> list[Iteration]:
    """These iterations of all workers here, until all are whole."""
    entries = [
        training.iterate([batch(rank, number) for rank in training.ranks], step_context(number, steps))
        for number in range(first, last)
    ]
    training.sync_model()
    return entries


def weights(training: Synchronization) -> torch.Tensor:
    """All of the agreed ones, float32 [n], in the order in which they are sent."""
    return torch.cat(
        [parameter.detach().flatten() for parameter in reversed(list(training.model.parameters()))]
    )


def workers_here(training: Any) -> list[Any]:
    """The simulated ones, or a process's own."""
    return getattr(training, "by_rank", [training])


class Learnt:
    """What the steps of workers here have come to, added up beside the code that is tested.

    Attributes:
        sum: float64 [n], in the order of `weights`.
    """

    def __init__(self, training: Any) -> None:
        self.sum = torch.zeros(weights(training).numel()).double()
        for replica in (worker._replica for worker in workers_here(training)):
            replica.step = partial(self._add, replica, replica.step)

    def _add(self, replica: Any, step: Any, position: object) -> None:
        before = torch.cat(replica.weights()).double()
        step(position)
        self.sum += before - torch.cat(replica.weights()).double()


def kept(training: Any) -> torch.Tensor:
    """float64 [n], what a checkpoint has of workers here that they have not sent, and what they learnt since.

    That is residuals, what waits, and how far they have moved in a round that is not closed.
    """
    state, total = training.worker_state(), torch.zeros(weights(training).numel()).double()
    for worker in workers_here(training):
        rank = str(worker.rank)
        total += torch.cat(worker.local.fragments[0].pseudo_gradient()).double()
        unsent = state["local"]["fragments"][0]["unsent"]["ranks"][rank]["residuals"]
        total += torch.cat([unsent[name] for name in worker._replica.names]).double() if unsent else 0
        pending = state["replicas"][rank]["pending"]
        total += 0 if pending is None else torch.cat(pending).double()
    return total


def hashed(training: Synchronization) -> str:
    """Of the agreed weights."""
    return hashlib.sha256(weights(training).numpy().tobytes()).hexdigest()
