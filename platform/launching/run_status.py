"""What Ray Train's workers get, and the status of a run: worker 0 posts it, the driver reads it.

Light to import: the controller needs no torch.
"""

from dataclasses import dataclass, field
from typing import Any

from ..training.reporting import TRAINING, RunProgress

READING = "reading the data"
"""The stage with which a group of workers begins, before any of them trains."""


@dataclass(frozen=True)
class Job:
    """One run for the workers of one trainer, as plain data."""

    spec_json: str
    tracking_uri: str
    run_id: str
    """The MLflow run."""
    folder: str
    """The address of its folder, for people."""
    status: Any
    """A Ray actor handle of `RunStatus`."""


@dataclass
class StatusUpdate:
    """What happened since the status was last read."""

    progress: RunProgress | None = None
    """Where the run stands."""
    evaluations: list[RunProgress] = field(default_factory=list)
    """Where it stood after each evaluation."""
    notices: list[str] = field(default_factory=list)
    """Lines for the user."""
    stages: list[str] = field(default_factory=list)
    """What began meanwhile, in a few words, such as `starting Ray`."""


class RunStatus:
    """A Ray actor of the driver (made by `launch`): it outlives workers."""

    def __init__(self) -> None:
        self._update = StatusUpdate()
        self._result: tuple[dict[str, float], dict[str, str]] = {}, {}
        self._decided: dict[str, str] = {}
        self._trains = self._interrupted = self._saved = False
        self._begun: dict[int, int] = {}

    def set_progress(self, progress: RunProgress, evaluated: bool) -> None:
        """Replaces the progress, and keeps it if it is that after an evaluation."""
        self._update.progress = progress
        if evaluated:
            self._update.evaluations.append(progress)

    def notify(self, notice: str) -> None:
        """Adds a line for the user."""
        self._update.notices.append(notice)

    def add_stage(self, stage: str) -> None:
        """Adds what the workers are doing now."""
        self._update.stages.append(stage)
        self._trains = stage == TRAINING
        if stage == READING:  # what workers said that have died since is not agreed on
            self._begun.clear()

    def decide(self, key: str, value: str) -> str:
        """Writes a value under a key where there is none yet; returns the value that is there."""
        return self._decided.setdefault(key, value)

    def set_result(self, metrics: dict[str, float], artifacts: dict[str, str]) -> None:
        """Says what the run came to: last evaluation and totals, by MLflow name; texts to keep, by name."""
        self._result = metrics, artifacts

    def result(self) -> tuple[dict[str, float], dict[str, str]]:
        """What `set_result` said; empty before."""
        return self._result

    def interrupt(self) -> bool:
        """Has the workers end with a checkpoint; whether they train already."""
        self._interrupted = True
        return self._trains

    def is_interrupted(self) -> bool:
        """Whether the run shall end with a checkpoint."""
        return self._interrupted

    def propose_last(self, rank: int, begun: int, workers: int) -> int | None:
        """Notes which iteration a worker has begun; the last one, once all workers have said theirs."""
        self._begun[rank] = begun
        return max(self._begun.values()) if len(self._begun) == workers else None

    def set_saved(self) -> None:
        """Notes that the workers have ended with a checkpoint."""
        self._saved = True

    def is_saved(self) -> bool:
        """Whether the workers have ended with a checkpoint."""
        return self._saved

    def read(self) -> StatusUpdate:
        """What came since the last reading."""
        update, self._update = self._update, StatusUpdate(self._update.progress)
        return update
