"""What a worker is told to do, as plain data."""

from dataclasses import dataclass

from .board import BoardHandle


@dataclass(frozen=True)
class Job:
    """One run for the workers of one trainer."""

    spec_json: str
    tracking_uri: str
    run_id: str
    """The MLflow run."""
    board: BoardHandle
