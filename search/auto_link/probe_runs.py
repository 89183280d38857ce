"""Trains the beginning of runs, in parts that continue one another, with simulated workers."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray

from taugrad.compressors.errors import Diverged
from taugrad.platform.data import Data
from taugrad.platform.data.examples import Draw, Examples, Pair, Parts
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.run import PublishConfig
from taugrad.platform.tasks.metric import LOSS
from taugrad.platform.tracking import names
from taugrad.platform.training.checkpoint import SHARED, Saved, unpack, worker_file
from taugrad.platform.training.reporting import Listener, RunProgress
from taugrad.platform.training.trainer import Trainer

from ..plan.candidates import simulated
from ..run_trial import group_of_one
from .step_value import Curve

_LEAST_JUDGES, _BATCHES = 128, 8
"""Test examples of an evaluation: at least so many, and so many batches, which take no longer than a few
steps. They are the same for all candidates."""


@dataclass
class _ProbeRun:
    """The state of a training."""

    folder: Path
    points: dict[int, float] = field(default_factory=dict)
    """Losses by step."""
    done: int = 0
    seconds: float = 0.0
    broken: bool = False
    """Whether a gradient was not finite."""


class _Enough(Exception):
    """The training has reached its last step, or its time is over."""


class _Recorder(Listener):
    """Records losses, and ends the training at a checkpoint, or when the time is over."""

    def __init__(self, run: _ProbeRun, until: int, late: Callable[[], bool] = lambda: False) -> None:
        self._course, self._until, self._late = run, until, late

    def progress(self, progress: RunProgress, *, evaluated: bool) -> None:
        """Ends the training when the time is over; steps since the last part are lost, but no loss is."""
        if not evaluated and self._late():
            raise _Enough

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Records the loss."""
        self._course.points[iteration] = metrics[names.EVAL_LOSS]

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Saves the training at its last step, and ends it."""
        if iteration >= self._until:
            self._course.folder.mkdir(exist_ok=True)
            write(self._course.folder)
            raise _Enough


class ProbeRuns:
    """Trainings on a run's data that can be continued."""

    def __init__(self, data: Data, judges: int, folder: Path) -> None:
        """A process group must exist while runs are trained.

        Args:
            data: the run's.
            judges: about how many test examples are evaluated.
            folder: for checkpoints.
        """
        chosen = np.unique(np.linspace(0, len(data.test) - 1, judges).astype(np.int64))
        self._data = Parts(data.train, _Some(data.test, chosen), data.shape)
        self._folder = folder
        self._runs: dict[str, _ProbeRun] = {}

    def train(self, spec: RunSpec, steps: int, every: int, late: Callable[[], bool] = lambda: False) -> Curve:
        """Trains a run, from its beginning or from its last part on.

        Args:
            spec: the run, by real or by simulated workers.
            steps: the last step, a multiple of `every`; no more than the run has.
            every: steps between two evaluations.
            late: called after each step: whether the time is over.

        Returns:
            Its losses from step 0 on; an infinite one once a gradient was not finite.
        """
        run = self._runs.setdefault(spec.fingerprint(), _ProbeRun(self._folder / str(len(self._runs))))
        if not run.broken and run.done < steps and not late():
            try:
                self._train(spec, run, steps, every, late)
            except Diverged:
                run.broken = True
        if run.broken:
            run.points[steps] = float("inf")
        points = sorted(run.points.items())
        return Curve(tuple(step for step, _ in points), tuple(loss for _, loss in points))

    def step_seconds(self, spec: RunSpec) -> float:
        """Mean seconds of a step of a run, with its share of evaluations; infinite before the first part."""
        run = self._runs[spec.fingerprint()]
        return run.seconds / run.done if run.done else math.inf

    def _train(self, spec: RunSpec, run: _ProbeRun, steps: int, every: int, late: Callable[[], bool]) -> None:
        training = spec.training.model_copy(update={"evaluate_every": every, "until": {}, "compile": False})
        checkpoint = spec.checkpoint.model_copy(update={"interval": steps})
        tracking = spec.tracking.model_copy(update={"flush_interval": 1})  # the recorder looks at the clock
        changed = {"training": training, "checkpoint": checkpoint, "tracking": tracking}
        part = simulated(spec).model_copy(update=changed | {"publish": PublishConfig()})
        recorder = _Recorder(run, steps, late)
        trainer = Trainer(part, self._data, torch.device("cpu"), recorder, resumes=run.done > 0)
        if run.done:
            shared, worker = (unpack((run.folder / name).read_bytes()) for name in (SHARED, worker_file(0)))
            trainer.resume(Saved(shared, worker))
        else:
            run.points[0] = trainer.evaluated()[LOSS.name]
        with suppress(_Enough):
            trainer.fit()
        if trainer.done >= steps:  # else it has no checkpoint
            run.done = trainer.done
            run.seconds = trainer.seconds  # those before the checkpoint included


class _Some(Examples):
    """A subset of examples, in their order."""

    def __init__(self, examples: Examples, chosen: NDArray[np.int64]) -> None:
        self._examples, self._chosen = examples, chosen
        self.in_memory = examples.in_memory

    def __len__(self) -> int:
        return len(self._chosen)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`."""
        return self._examples.batch(self._chosen[indices], draw)


@contextmanager
def probe_runs_of(spec: RunSpec, data: Data) -> Iterator[ProbeRuns]:
    """Trainings in this process, which must be in no process group; their files are removed at the end."""
    with TemporaryDirectory(prefix="taugrad-") as folder, group_of_one():
        yield ProbeRuns(data, max(_LEAST_JUDGES, _BATCHES * spec.training.batch_size), Path(folder))


def untrained(spec: RunSpec, data: Data) -> Trainer:
    """A run before its first step; a process group must exist."""
    return Trainer(simulated(spec), data, torch.device("cpu"), Listener())
