"""What Ray Train's workers get, as plain data. Light to import: the controller needs no torch."""

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
