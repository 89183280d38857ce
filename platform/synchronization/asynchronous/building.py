"""Builds the workers of the mode `async` from a spec."""

from copy import deepcopy

import torch
from torch import nn

from ...spec import RunSpec
from ...tasks.base import Task
from ...training.generators import Randomness
from ...training.replica import Replica
from ..config import AsyncSync, SimulatedSync, real
from ..rounds import Crew
from .mail import Mail
from .mode import AsynchronousTraining
from .processes import ProcessMail
from .schedule import Course, even
from .simulation import SimulatedMail
from .worker import Worker


def build_asynchronous(
    spec: RunSpec, model: nn.Module, task: Task, device: torch.device, crew: Crew
) -> tuple[AsynchronousTraining, Randomness]:
    """The workers of this process; torch's process group must exist.

    Args:
        spec: the run.
        model: of the same weights on every worker.
        task: what it is trained for.
        device: the model's.
        crew: of the spec's workers.
    """
    randomness = Randomness(spec.seed, crew.ranks)
    replicas = [Replica(model, task, spec.training, crew.workers)]
    replicas += [Replica(deepcopy(model), task, spec.training, crew.workers) for _ in crew.ranks[1:]]
    workers = [
        Worker(
            replica,
            spec.compressor,
            spec.training,
            rank,
            crew.workers,
            hold_back_zeros=spec.training.find_unused_parameters,
        )
        for rank, replica in zip(crew.ranks, replicas, strict=True)
    ]
    return AsynchronousTraining(crew, _mail(spec, device, crew), workers, randomness), randomness


def _mail(spec: RunSpec, device: torch.device, crew: Crew) -> Mail:
    mode = real(spec.sync)
    assert isinstance(mode, AsyncSync)
    course = Course(even(crew.workers, mode.step_times), mode.delay, mode.schedule_seed, mode.most_behind)
    if isinstance(spec.sync, SimulatedSync):
        return SimulatedMail(course)
    return ProcessMail(
        device,
        crew.carriers[0],
        most_behind=mode.most_behind,
        course=course if mode.follow_schedule else None,
    )
