"""What a trainer reports, independently of who listens."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..tasks.metric import Metric

TRAINING = "training"
"""The stage that begins when the first iteration is done."""


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run, for people to watch."""

    epoch: int
    epochs: int
    iteration: int
    iterations: int
    loss: float
    metric: Metric
    """The one that counts."""
    value: float | None
    """Its value at the last evaluation; None before the first."""
    evaluation: int
    """How many evaluations are behind."""
    fraction: float
    """Elements sent over elements since the run began: local steps send nothing between exchanges."""
    wire_bytes: int
    """Bytes that all workers have sent since the run began."""
    seconds_left: float
    own_models: bool = False
    """Whether the loss is of the workers' own models; the metric is always of the one that they agreed on."""


class Listener:
    """Where metrics, progress and checkpoints go; this one does nothing. Every worker has one; 0's logs."""

    def stage(self, name: str) -> None:
        """The stage that begins now, in a few words. Must not block."""

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Metrics of an iteration, or of an evaluation after it. Must not block."""

    def progress(self, progress: RunProgress, *, evaluated: bool) -> None:
        """The progress of the run, and whether it was just evaluated. Must not block."""

    def evaluated(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """An evaluation is done; every worker reports it, with the same figures."""

    def checkpoint(self, iteration: int, write: Callable[[Path], None]) -> None:
        """It is time for a checkpoint: `write` puts this worker's files into an empty folder."""

    def ends_after(self, iteration: int) -> bool:
        """Whether an interrupted run ends after this iteration; every worker gets the same answer."""
        return False

    def undelivered(self) -> list[str]:
        """The lines of the journal that are not in MLflow yet; they go into the checkpoint."""
        return []
