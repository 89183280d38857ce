"""Trainers whose listener keeps what it hears."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.training.checkpoint import SHARED, Saved, unpack, worker_file
from taugrad.platform.training.reporting import Listener, RunProgress
from taugrad.platform.training.trainer import Trainer


class Recorder(Listener):
    """Keeps everything; checkpoints go to folders by iteration, where it has a folder, which all share."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.evaluations: list[tuple[int, dict[str, float]]] = []
        self.checkpoints: list[int] = []
        self.progresses: list[RunProgress] = []
        self.stages: list[str] = []

    def stage(self, name: str) -> None:
        self.stages.append(name)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.logged.append((iteration, dict(metrics)))

    def progress(self, progress: RunProgress, *, evaluated: bool) -> None:
        assert progress.evaluation >= 0
        self.progresses.append(progress)

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.evaluations.append((iteration, dict(metrics)))

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        self.checkpoints.append(iteration)
        if self.folder is not None:
            (self.folder / str(iteration)).mkdir(parents=True, exist_ok=True)
            write(self.folder / str(iteration))
            dist.barrier()

    def values(self, metric: str) -> list[float]:
        """Of all iterations that have it."""
        return [metrics[metric] for _, metrics in self.logged if metric in metrics]

    @property
    def losses(self) -> list[float]:
        return self.values("train/loss")


def trainer_of(
    spec: RunSpec | dict[str, Any], folder: Path | None = None, saved: Saved | None = None
) -> Trainer:
    """A trainer on the CPU, whose `listener` is a recorder; it goes on from a checkpoint, if one is given."""
    read = RunSpec.model_validate(spec)
    made = Trainer(read, load(read.data), torch.device("cpu"), Recorder(folder))
    if saved is not None:
        made.resume(saved)
    return made


def trained(
    spec: RunSpec | dict[str, Any], folder: Path | None = None, saved: Saved | None = None
) -> tuple[Trainer, Recorder]:
    """The same, at the run's end, and what its recorder kept."""
    made = trainer_of(spec, folder, saved)
    made.fit()
    return made, made.listener


def saved_in(folder: Path, rank: int) -> Saved:
    """A checkpoint that a recorder kept, for the same workers."""
    return Saved(*(unpack((folder / name).read_bytes()) for name in (SHARED, worker_file(rank))))


def saved_by(folder: Path, processes: int) -> Saved:
    """What so many processes wrote, for another number of workers."""
    every = tuple(unpack((folder / worker_file(rank)).read_bytes()) for rank in range(processes))
    return Saved(unpack((folder / SHARED).read_bytes()), {}, every)
