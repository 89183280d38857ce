"""One training of a search: in this process when its workers are simulated, or as a Ray Train run.

Each leaves an ordinary MLflow run, a child of the search's.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.importing import import_object
from taugrad.platform.launching.board import News
from taugrad.platform.launching.launch import RunResult, launch
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import SimulatedSync
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import finish_run
from taugrad.platform.tracking.writer import MetricWriter, PendingMetric
from taugrad.platform.training.reporting import Progress

from .objective import Outcome

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

OnEpoch = Callable[[int, Outcome], None]
"""Told after each epoch, counted from 1; raises SystemExit to stop the training."""

_DELIVERY_S = 30.0


def train(
    spec: RunSpec, client: "MlflowClient", run_id: str, evaluate: str | None, on_epoch: OnEpoch
) -> Outcome:
    """Trains a spec to its end.

    Args:
        spec: what to train.
        client: the tracking store that holds the run.
        run_id: the MLflow run, in the state RUNNING; afterwards it is in its final one.
        evaluate: `package.module:function` of a user's own training.
        on_epoch: told how it goes.

    Returns:
        The last evaluation, and what was sent.

    Raises:
        Exception: whatever the training raises.
    """
    if evaluate is None and not isinstance(spec.sync, SimulatedSync):
        return _launched(spec, client, run_id, on_epoch)
    try:
        if evaluate is not None:
            outcome = _evaluated(evaluate, spec, client, run_id, on_epoch)
        else:
            outcome = _simulated(spec, client, run_id, on_epoch)
    except BaseException as error:
        with suppress(Exception):  # the training's own error says more than that of a store that is away
            finish_run(client, run_id, "FAILED" if isinstance(error, Exception) else "KILLED")
        raise
    with suppress(Exception):
        finish_run(client, run_id, "FINISHED")
    return outcome


def in_own_process(spec: RunSpec, evaluate: str | None) -> bool:
    """Whether a training runs in the process of its trial, and not in workers of its own."""
    return evaluate is not None or isinstance(spec.sync, SimulatedSync)


def _simulated(spec: RunSpec, client: "MlflowClient", run_id: str, on_epoch: OnEpoch) -> Outcome:
    import torch  # noqa: PLC0415 - takes seconds

    from taugrad.platform.data import load  # noqa: PLC0415
    from taugrad.platform.training.trainer import Trainer  # noqa: PLC0415

    torch.set_num_threads(max(1, int(spec.workers.cpus)))
    device = torch.device("cuda" if spec.workers.device == "cuda" else "cpu")
    writer = MetricWriter(client, run_id, notify=print)
    listener = _Listener(writer, on_epoch)
    try:
        with _group_of_one():
            trainer = Trainer(spec, load(spec.data), device, listener)
            trainer.fit()
            writer.log(trainer.done, trainer.totals(), kind="total")
    finally:
        writer.close(_DELIVERY_S)
    assert listener.latest is not None  # every epoch ends with an evaluation
    return listener.latest


@contextmanager
def _group_of_one() -> Iterator[None]:
    """A process group that the trainer can ask, without a network."""
    import torch.distributed as dist  # noqa: PLC0415 - takes seconds
    from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Listener:
    """Hands metrics to MLflow and evaluations to the trial; simulated trainings leave no checkpoints."""

    def __init__(self, writer: MetricWriter, on_epoch: OnEpoch) -> None:
        self._writer, self._on_epoch = writer, on_epoch
        self.latest: Outcome | None = None

    def stage(self, name: str) -> None:
        pass

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._writer.log(iteration, metrics)

    def progress(self, progress: Progress, *, evaluated: bool) -> None:
        pass

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.latest = Outcome(metrics[names.EVAL_ACCURACY], 1e9 * metrics[names.TOTAL_WIRE_GB])
        self._on_epoch(round(metrics[names.EPOCH]), self.latest)

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        pass

    def undelivered(self) -> list[PendingMetric]:
        return []


def _launched(spec: RunSpec, client: "MlflowClient", run_id: str, on_epoch: OnEpoch) -> Outcome:
    """As a Ray Train run; the one that this run's name stands for goes on from its last checkpoint."""
    heard: queue.SimpleQueue[Progress | RunResult | BaseException] = queue.SimpleQueue()

    def watch(news: News) -> None:
        for progress in news.evaluations:
            heard.put(progress)

    def run() -> None:
        try:
            heard.put(launch(spec, client, run_id, watch))
        except BaseException as error:
            heard.put(error)

    # Tune stops a trial by an exception in the thread that reports: this one, which must not wait elsewhere.
    threading.Thread(target=run, daemon=True).start()
    while True:
        match heard.get():
            case Progress() as progress:
                assert progress.value is not None  # it comes from an evaluation
                on_epoch(progress.epoch, Outcome(progress.value, progress.wire_bytes))
            case RunResult(metrics=metrics):
                return Outcome(metrics[names.EVAL_ACCURACY], 1e9 * metrics[names.TOTAL_WIRE_GB])
            case BaseException() as error:
                raise error


def _evaluated(
    evaluate: str, spec: RunSpec, client: "MlflowClient", run_id: str, on_epoch: OnEpoch
) -> Outcome:
    """By a user's own training."""
    outcome: Outcome | None = None
    for epoch, (accuracy, wire_bytes) in enumerate(import_object(evaluate)(spec), start=1):
        outcome = Outcome(float(accuracy), float(wire_bytes))
        client.log_metric(run_id, names.EVAL_ACCURACY, outcome.accuracy, step=epoch)
        client.log_metric(run_id, names.TOTAL_WIRE_GB, outcome.wire_bytes / 1e9, step=epoch)
        on_epoch(epoch, outcome)
    if outcome is None:
        raise ValueError(f"{evaluate} yielded no epoch")
    return outcome
