"""Runs in a Ray Train worker: a trainer whose listener reports to Ray and MLflow."""

import logging
import shlex
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic

import ray
import torch
from ray.train.torch import get_device

from ..data import load
from ..deadline import in_time
from ..spec import RunSpec
from ..spec.resizing import with_present
from ..synchronization.traffic import MOST_WORKERS
from ..tracking import names
from ..tracking.ended import UNDELIVERED
from ..tracking.masking import masked
from ..tracking.store_process import StoreProcess
from ..tracking.writer import MetricWriter, PendingMetric
from ..training.reporting import Progress
from ..training.trainer import Trainer
from ..user_code import placing_errors
from .checkpoints import Checkpoints
from .fallback import keep_text
from .job import Job
from .placing import with_sites
from .process_group import process_group
from .run_folder import RunFolder
from .stages import stage

_PROGRESS_S = 0.5
_DELIVERY_S = 30.0
_ARTIFACT_S = 10.0


@placing_errors()
def train(job: Job) -> None:
    """Trains this worker's replica."""
    spec = RunSpec.model_validate_json(job.spec_json)
    torch.set_num_threads(max(1, int(spec.workers.cpus)))
    device = get_device()
    assert isinstance(device, torch.device)
    with process_group(device) as (rank, present):
        wanted = spec.workers.count
        spec = with_sites(with_present(spec, present))
        tracker = _Tracker(job) if rank == 0 else None
        notify = (lambda _: None) if tracker is None else tracker.notify
        if spec.workers.count != wanted:
            notify(f"the cluster has room for {present} of {wanted} workers: going on with these")
        log = logging.getLogger("taugrad")
        log.setLevel(logging.INFO)
        log.addHandler(_Telling(notify))
        checkpoints = Checkpoints(job, spec.checkpoint.keep, spec.workers.count, device, notify)
        listener = _RayListener(tracker, checkpoints)
        try:
            listener.stage("reading the data")
            data = load(spec.data)
            listener.read(data.fingerprint)
            saved = listener.checkpoints.newest()
            trainer = Trainer(
                spec,
                data,
                device,
                listener,
                resumes=saved is not None,
                decide=lambda key, value: str(ray.get(job.status.decide.remote(key, value))),
            )
            if saved is not None:
                listener.restore(trainer.resume(saved))
            trainer.fit()
            listener.finish(trainer.done, trainer.totals(), _artifacts(trainer))
        finally:
            listener.close()


def _artifacts(trainer: Trainer) -> dict[str, str]:
    """Texts that the run keeps, by name, where there are not too many workers; on every one together."""
    if not 1 < trainer.sync.workers <= MOST_WORKERS:
        return {}
    links, timeline = trainer.sync.links(), trainer.timeline()
    texts = {
        names.ARTIFACT_LINKS: None if links is None else links.to_csv(),
        names.ARTIFACT_TIMELINE: None if timeline is None else timeline.to_json(),
    }
    return {name: text for name, text in texts.items() if text is not None}


class _Telling(logging.Handler):
    """Tells the user what parts of the platform log, which know neither Ray nor the status."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        self._notify(record.getMessage())


class _Tracker:
    """Worker 0's ways to MLflow and to the user."""

    def __init__(self, job: Job) -> None:
        self.status = job.status
        self._run_id = job.run_id
        # The store is asked in the writer's thread alone: where it is away, training begins all the same.
        self._store = StoreProcess(job.tracking_uri)
        self.writer = MetricWriter(
            self._store, job.run_id, stored=lambda: self._store.stored(job.run_id), notify=self.notify
        )
        self._shown = 0.0

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self.writer.log(iteration, metrics, kind="evaluation" if names.EVAL_LOSS in metrics else "iteration")

    def tag(self, name: str, value: str) -> None:
        """Tags the run, if the store answers; nothing waits for that."""

        def tag() -> None:
            with suppress(Exception):
                self._store.set_tag(self._run_id, name, value)

        threading.Thread(target=tag, daemon=True).start()

    def show(self, progress: Progress, *, evaluated: bool) -> None:
        if evaluated or monotonic() - self._shown >= _PROGRESS_S:
            self._shown = monotonic()
            self.status.pin.remote(progress, evaluated)

    def keep(self, name: str, text: str, folder: RunFolder) -> None:
        """Makes a text an artifact of the run; if MLflow does not take it, a file beside the checkpoints."""
        try:
            in_time(_ARTIFACT_S, lambda: self._store.log_text(self._run_id, text, name))
        except Exception as error:  # the training is done: what it came to must not be lost with it
            problem = f"MLflow did not take {name} ({masked(str(error))})"
            self.rescue(problem, folder, name, text, "it is {0}")

    def rescue(self, problem: str, folder: RunFolder, name: str, text: str, where: str) -> None:
        """Keeps what MLflow did not take beside the checkpoints, or on this machine, and says so.

        Args:
            problem: why.
            folder: of the run.
            name: of the file.
            text: what it will hold.
            where: what is said of the file's address, which takes the place of `{0}`, and quoted of `{1}`.
        """
        try:
            place = keep_text(folder, name, text)
        except OSError as error:  # nothing is left but to say so
            self.notify(f"{problem}, and it could not be kept: {error}")
            return
        self.notify(f"{problem}; {where.format(place, shlex.quote(str(place)))}")

    def notify(self, notice: str) -> None:
        self.status.notify.remote(notice)

    def enter(self, name: str) -> None:
        self.status.enter.remote(stage(name))

    def close(self, folder: RunFolder) -> None:
        """Delivers what is left; what cannot be delivered goes to a file in the run's folder."""
        if count := self.writer.close(_DELIVERY_S):
            problem, left = f"MLflow did not take {count} metrics", self.writer.undelivered()
            where = "they are in {0}. When it answers again: taugrad deliver {1}"
            self.rescue(problem, folder, UNDELIVERED, left, where)
        self._store.close()

    def conclude(self, iteration: int, evaluation: dict[str, float], totals: Mapping[str, float]) -> None:
        """Logs the run's totals, and tells the driver what it came to, whatever becomes of MLflow."""
        self.writer.log(iteration, totals, kind="total")
        ray.get(self.status.conclude.remote({**evaluation, **totals}))


class _RayListener:
    """Hands metrics to MLflow, progress to the status, checkpoints to the run's folder."""

    def __init__(self, tracker: _Tracker | None, checkpoints: Checkpoints) -> None:
        self._tracker = tracker
        self.checkpoints = checkpoints
        self._latest: dict[str, float] = {}

    def stage(self, name: str) -> None:
        if self._tracker is not None:
            self._tracker.enter(name)

    def read(self, fingerprint: str) -> None:
        """Logs which data the run has, if that is known."""
        if self._tracker is not None and fingerprint:
            self._tracker.tag(names.TAG_DATA, fingerprint)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self._tracker is not None:
            self._tracker.log(iteration, metrics)

    def progress(self, progress: Progress, *, evaluated: bool) -> None:
        if self._tracker is not None:
            self._tracker.show(progress, evaluated=evaluated)

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        self._latest = dict(metrics)

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        self.checkpoints.write(iteration, write)

    def undelivered(self) -> list[PendingMetric]:
        return [] if self._tracker is None else self._tracker.writer.pending()

    def restore(self, undelivered: list[PendingMetric]) -> None:
        """Restores the metrics that had not reached MLflow when a checkpoint was written."""
        if self._tracker is not None:
            self._tracker.writer.restore(undelivered)

    def finish(self, iteration: int, totals: Mapping[str, float], artifacts: Mapping[str, str]) -> None:
        """Logs the run's totals, tells the driver, and keeps texts as the run's artifacts."""
        if self._tracker is not None:
            for name, text in artifacts.items():
                self._tracker.keep(name, text, self.checkpoints.folder)
            self._tracker.conclude(iteration, self._latest, totals)

    def close(self) -> None:
        """Delivers what is left; what cannot be delivered goes to a file."""
        if self._tracker is not None:
            self._tracker.close(self.checkpoints.folder)
