"""What runs in a Ray Train worker: a trainer whose listener speaks Ray and MLflow."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint
from ray.train.torch import get_device

from ..data import load
from ..spec import RunSpec
from ..synchronization.links import MOST_WORKERS, Links
from ..tracking import names
from ..tracking.store import last_step, open_client
from ..tracking.writer import MetricWriter, PendingMetric
from ..training.reporting import Progress
from ..training.trainer import Trainer
from .job import Job
from .process_group import process_group

_PROGRESS_S = 0.5
_DELIVERY_S = 30.0
UNDELIVERED = "undelivered-metrics.jsonl"


def train_worker(config: dict[str, Any]) -> None:
    """Trains this worker's replica; the train loop that Ray Train calls.

    Args:
        config: `{"job": Job}`.
    """
    # The writer tries again by itself; MLflow's own patience of minutes would only hide an outage.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    job: Job = config["job"]
    spec = RunSpec.model_validate_json(job.spec_json)
    torch.set_num_threads(max(1, int(spec.workers.cpus)))
    device = get_device()
    assert isinstance(device, torch.device)
    with process_group(device) as (rank, _):
        tracker = _Tracker(job) if rank == 0 else None
        storage = Path(ray.train.get_context().get_storage().experiment_fs_path)
        listener = _RayListener(tracker, storage)
        try:
            trainer = Trainer(spec, load(spec.data), device, listener)
            checkpoint = ray.train.get_checkpoint()
            if checkpoint is not None:
                with checkpoint.as_directory() as folder:
                    undelivered = trainer.resume(Path(folder))
                listener.restore(undelivered)
            trainer.fit()
            listener.finish(trainer.done, trainer.totals(), _links(trainer))
        finally:
            listener.close()


def _links(trainer: Trainer) -> Links | None:
    """What went over each link, where that is known and there are not too many; on every worker together."""
    return trainer.sync.links() if 1 < trainer.sync.workers <= MOST_WORKERS else None


class _Tracker:
    """Worker 0's ways to MLflow and to the user."""

    def __init__(self, job: Job) -> None:
        self.board = job.board
        self._client, self._run_id = open_client(job.tracking_uri), job.run_id
        client = self._client
        # What an earlier start of this run has logged is not logged again.
        self._evaluated = last_step(client, job.run_id, names.EVAL_ACCURACY)
        self.writer = MetricWriter(
            client,
            job.run_id,
            skip_through=last_step(client, job.run_id, names.COMM_FRACTION),
            notify=self.notify,
        )
        self._shown = 0.0

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if names.EVAL_ACCURACY in metrics:
            if iteration > self._evaluated:
                self.writer.log(iteration, metrics, always=True)
        else:
            self.writer.log(iteration, metrics)

    def show(self, progress: Progress, *, evaluated: bool) -> None:
        if evaluated or monotonic() - self._shown >= _PROGRESS_S:
            self._shown = monotonic()
            self.board.pin.remote(progress, evaluated)

    def keep(self, name: str, text: str, storage: Path) -> None:
        """Makes a text an artifact of the run; if MLflow does not take it, a file beside the checkpoints."""
        try:
            self._client.log_text(self._run_id, text, name)
        except Exception as error:  # the training is done: what it came to must not be lost with it
            path = storage / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            self.notify(f"MLflow did not take {name} ({error}); it is {path}")

    def notify(self, notice: str) -> None:
        self.board.notify.remote(notice)


class _RayListener:
    """Hands metrics to MLflow, progress to the board, checkpoints to Ray Train."""

    def __init__(self, tracker: _Tracker | None, storage: Path) -> None:
        self._tracker = tracker
        self._storage = storage
        self._latest: dict[str, float] = {}

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self._tracker is not None:
            self._tracker.log(iteration, metrics)

    def progress(self, progress: Progress, *, evaluated: bool) -> None:
        if self._tracker is not None:
            self._tracker.show(progress, evaluated=evaluated)

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._latest = {"iteration": iteration, **metrics}
        ray.train.report(self._latest)

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
            write(Path(folder))
            ray.train.report(
                {**self._latest, "iteration": iteration},
                checkpoint=Checkpoint.from_directory(folder),
                checkpoint_dir_name=f"iteration_{iteration:08d}",
            )

    def undelivered(self) -> list[PendingMetric]:
        return [] if self._tracker is None else self._tracker.writer.pending()

    def restore(self, undelivered: list[PendingMetric]) -> None:
        """Takes over the metrics that had not reached MLflow when a checkpoint was written."""
        if self._tracker is not None:
            self._tracker.writer.restore(undelivered)

    def finish(self, iteration: int, totals: Mapping[str, float], links: Links | None) -> None:
        """Logs the run's totals, on the driver's side too, and keeps what went over each link."""
        if self._tracker is not None:
            self._tracker.writer.log(iteration, totals, always=True)
            if links is not None:
                self._tracker.keep(names.ARTIFACT_LINKS, links.to_csv(), self._storage)
        ray.train.report({**self._latest, "iteration": iteration, **totals})

    def close(self) -> None:
        """Delivers what is left; what cannot be delivered goes to a file."""
        if self._tracker is None:
            return
        writer = self._tracker.writer
        if writer.close(_DELIVERY_S):
            path = self._storage / UNDELIVERED
            count = writer.save_undelivered(path)
            self._tracker.notify(
                f"MLflow did not take {count} metrics; they are in {path}. "
                f"When it answers again: taugrad deliver {path}"
            )
