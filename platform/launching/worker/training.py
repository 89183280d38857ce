"""Runs in a Ray Train worker: a trainer whose listener reports to Ray and to the journal."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import ray
import torch
from ray.train.torch import get_device

from ...data import load
from ...spec import RunSpec
from ...spec.resizing import with_present
from ...synchronization.ledger import SHOWN_WORKERS
from ...tracking import names
from ...tracking.journal import MetricsJournal
from ...training.reporting import Listener, RunProgress
from ...training.trainer import Trainer
from ...user_code import placing_errors
from ..run_status import READING, Job
from ..undelivered import close_journal
from .checkpoints import Checkpoints
from .interruption import Interruption
from .process_group import process_group, with_sites

_PROGRESS_S = 0.5
_ANSWER_S = 10.0


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
        notify = job.status.notify.remote if rank == 0 else lambda _: None
        if spec.workers.count != wanted:
            notify(f"the cluster has room for {present} of {wanted} workers: going on with these")
        log = logging.getLogger("taugrad")
        log.setLevel(logging.INFO)
        log.addHandler(_NotifyHandler(notify))
        checkpoints = Checkpoints(job, spec.checkpoint.keep, spec.workers.count, notify)
        journal = MetricsJournal(job.tracking_uri, job.run_id, notify) if rank == 0 else None
        listener, interrupted = _Listener(job.status, journal, checkpoints), False
        try:
            listener.stage(READING)
            data = load(spec.data)
            if journal is not None and data.fingerprint:
                journal.tag(names.TAG_DATA, data.fingerprint)
            saved = checkpoints.newest()
            trainer = Trainer(
                spec,
                data,
                device,
                listener,
                resumes=saved is not None,
                decide=lambda key, value: str(ray.get(job.status.decide.remote(key, value))),
            )
            if saved is not None:
                left = trainer.resume(saved)
                if journal is not None:
                    journal.restore(left)
            with Interruption(
                trainer.done + 1,
                lambda: bool(ray.get(job.status.is_interrupted.remote(), timeout=_ANSWER_S)),
                lambda begun: ray.get(
                    job.status.propose_last.remote(rank, begun, present), timeout=_ANSWER_S
                ),
            ) as listener.interruption:
                trainer.fit()
            interrupted = trainer.interrupted
            if interrupted:
                return
            totals, artifacts = trainer.totals(), _artifacts(trainer)
            if journal is not None:
                journal.log(trainer.done, totals)
                # The driver hears what the run came to, whatever becomes of MLflow.
                ray.get(job.status.set_result.remote({**trainer.last_evaluation(), **totals}, artifacts))
        finally:
            if journal is not None:
                listener.stage("sending metrics to MLflow")
                close_journal(journal, checkpoints.folder, notify)
                listener.stage("ending the workers")
                if interrupted:
                    job.status.set_saved.remote()


def _artifacts(trainer: Trainer) -> dict[str, str]:
    """Texts that the run keeps, by name, where there are not too many workers; on every one together."""
    if not 1 < trainer.sync.workers <= SHOWN_WORKERS:
        return {}
    links, timeline = trainer.sync.links(), trainer.recording.gathered()
    texts = {
        names.ARTIFACT_LINKS: None if links is None else links.to_csv(),
        names.ARTIFACT_TIMELINE: None if timeline is None else timeline.to_json(),
    }
    return {name: text for name, text in texts.items() if text is not None}


class _NotifyHandler(logging.Handler):
    """Tells the user what parts of the platform log, which know neither Ray nor the status."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        self._notify(record.getMessage())


class _Listener(Listener):
    """Hands metrics to worker 0's journal, progress to the status, checkpoints to the run's folder."""

    def __init__(self, status: Any, journal: MetricsJournal | None, checkpoints: Checkpoints) -> None:
        self._status, self._journal, self._checkpoints = status, journal, checkpoints
        self._shown = 0.0
        self.interruption: Interruption | None = None
        """How workers agree on an end, while they train."""

    def stage(self, name: str) -> None:
        if self._journal is not None:
            self._status.add_stage.remote(name)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        if self._journal is not None:
            self._journal.log(iteration, metrics)

    def progress(self, progress: RunProgress, *, evaluated: bool) -> None:
        if self._journal is not None and (evaluated or monotonic() - self._shown >= _PROGRESS_S):
            self._shown = monotonic()
            self._status.set_progress.remote(progress, evaluated)

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        self._checkpoints.write(iteration, write)

    def ends_after(self, iteration: int) -> bool:
        return self.interruption is not None and self.interruption.ends_after(iteration)

    def undelivered(self) -> list[str]:
        return [] if self._journal is None else self._journal.unshipped()
