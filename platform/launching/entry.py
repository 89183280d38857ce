"""Where Ray Train's workers begin, and what they get. Light to import: the controller needs no torch."""

from dataclasses import dataclass
from typing import Any


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


def train_worker(config: dict[str, Any]) -> None:
    """The train loop that Ray Train calls in each worker.

    Args:
        config: `{"job": Job}`.
    """
    from .worker import train  # noqa: PLC0415 - imports torch, which the controller does not need

    train(config["job"])
