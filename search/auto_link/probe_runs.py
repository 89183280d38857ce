"""Trains the beginning of runs, with all workers simulated in this process.

A run can be trained in several parts; each one continues where the last one ended.
"""

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
from taugrad.platform.tasks.metric import LOSS
from taugrad.platform.tracking import names
from taugrad.platform.training.checkpoint import SHARED, Saved, unpack, worker_file
from taugrad.platform.training.evaluation import Evaluation, evaluate
from taugrad.platform.training.reporting import Listener, Progress
from taugrad.platform.training.trainer import Trainer

from ..run_trial import group_of_one
from ..ways import simulated
from .step_value import Curve

_LEAST_JUDGES, _BATCHES = 128, 8
"""Losses are of so many test examples at least, and of so many batches' worth: an evaluation is to take no
longer than a few steps. The same examples judge all, so that which ones they are hardly matters."""


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
    """The training has gone as far as it should."""


class _Recorder(Listener):
    """A listener that writes losses down and ends the training at a checkpoint, or when the time is over."""

    def __init__(self, run: _ProbeRun, until: int, late: Callable[[], bool] = lambda: False) -> None:
        self._course, self._until, self._late = run, until, late

    def progress(self, progress: Progress, *, evaluated: bool) -> None:
        """Looks at the clock. When it is late, what was trained since the last part is lost, but no loss."""
        if not evaluated and self._late():
            raise _Enough

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Keeps the loss."""
        self._course.points[iteration] = metrics[names.EVAL_LOSS]

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        """Saves the training where it is to end."""
        if iteration >= self._until:
            self._course.folder.mkdir(exist_ok=True)
            write(self._course.folder)
            raise _Enough


class ProbeRuns:
    """Trainings of one run's data that can be taken further."""

    def __init__(self, data: Data, judges: int, folder: Path) -> None:
        """Nothing is trained yet; a process group must exist while something is.

        Args:
            data: the run's.
            judges: how many test examples a loss is the mean of, about.
            folder: for what is needed to go on.
        """
        chosen = np.unique(np.linspace(0, len(data.test) - 1, judges).astype(np.int64))
        self._data = Parts(data.train, _Some(data.test, chosen), data.shape)
        self._folder = folder
        self._runs: dict[str, _ProbeRun] = {}

    def take(self, spec: RunSpec, steps: int, every: int, late: Callable[[], bool] = lambda: False) -> Curve:
        """Trains a run, from its beginning or from where it was left.

        Args:
            spec: the run, by real or by simulated workers.
            steps: how far, a multiple of `every`; no more than the run has.
            every: steps between two evaluations.
            late: asked after each step whether the time is over.

        Returns:
            Its losses from step 0 on, as far as it came; infinite ones where it came to what is no number.
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

    def untrained(self, spec: RunSpec, examples: Examples) -> Evaluation:
        """What a run begins with, by all of these examples."""
        nobody = _Recorder(_ProbeRun(self._folder), 0)
        return _evaluated(Trainer(simulated(spec), self._data, torch.device("cpu"), nobody), examples)

    def step_seconds(self, spec: RunSpec) -> float:
        """What a step of a run took so far, with its share of evaluations; infinite before the first part."""
        run = self._runs[spec.fingerprint()]
        return run.seconds / run.done if run.done else math.inf

    def _train(self, spec: RunSpec, run: _ProbeRun, steps: int, every: int, late: Callable[[], bool]) -> None:
        training = spec.training.model_copy(update={"evaluate_every": every, "until": {}, "compile": False})
        checkpoint = spec.checkpoint.model_copy(update={"interval": steps})
        tracking = spec.tracking.model_copy(update={"flush_interval": 1})  # the recorder looks at the clock
        part = simulated(spec).model_copy(
            update={"training": training, "checkpoint": checkpoint, "tracking": tracking}
        )
        recorder = _Recorder(run, steps, late)
        trainer = Trainer(part, self._data, torch.device("cpu"), recorder, resumes=run.done > 0)
        if run.done:
            shared, worker = (unpack((run.folder / name).read_bytes()) for name in (SHARED, worker_file(0)))
            trainer.resume(Saved(shared, worker))
        else:
            run.points[0] = _evaluated(trainer, self._data.test)[LOSS.name]
        with suppress(_Enough):
            trainer.fit()
        if trainer.done >= steps:  # else there is no checkpoint of it
            run.done = trainer.done
            run.seconds = trainer.seconds  # those before the checkpoint included


def _evaluated(trainer: Trainer, examples: Examples) -> Evaluation:
    training = trainer.spec.training
    return evaluate(
        trainer.model,
        trainer.task,
        examples,
        *(0, 1, torch.device("cpu")),
        training.precision,
        training.evaluation_block,
    )


class _Some(Examples):
    """Some of a part's examples, in their order."""

    def __init__(self, examples: Examples, chosen: NDArray[np.int64]) -> None:
        self._examples, self._chosen = examples, chosen
        self.in_memory = examples.in_memory

    def __len__(self) -> int:
        return len(self._chosen)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`."""
        return self._examples.batch(self._chosen[indices], draw)


def judges_of(spec: RunSpec) -> int:
    """How many test examples are to judge a run's beginnings."""
    return max(_LEAST_JUDGES, _BATCHES * spec.training.batch_size)


@contextmanager
def probe_runs_of(spec: RunSpec, data: Data) -> Iterator[ProbeRuns]:
    """Trainings in this process, which is in no process group; what they leave on the disk is removed."""
    with TemporaryDirectory(prefix="taugrad-") as folder, group_of_one():
        yield ProbeRuns(data, judges_of(spec), Path(folder))
