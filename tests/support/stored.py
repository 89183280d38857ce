"""What commands have left in a store."""

from pathlib import Path

from benchmarks.platform.faults.comparing import Outcome, outcome_of
from mlflow.entities import Run
from mlflow.tracking import MlflowClient


def client_of(folder: Path) -> MlflowClient:
    """Of the database in a folder."""
    return MlflowClient(f"sqlite:///{folder}/mlflow.db")


def all_runs(client: MlflowClient, experiment: str) -> list[Run]:
    """An experiment's runs; none where it is not there."""
    experiment_ = client.get_experiment_by_name(experiment)
    return (
        [] if experiment_ is None else list(client.search_runs([experiment_.experiment_id], max_results=1000))
    )


def named_runs(client: MlflowClient, experiment: str) -> dict[str, Run]:
    """The same by their names."""
    return {run.info.run_name: run for run in all_runs(client, experiment)}


def outcome(folder: Path, experiment: str, name: str) -> Outcome:
    """What a run has come to, whose checkpoints lie in the same folder."""
    client = client_of(folder)
    return outcome_of(client, named_runs(client, experiment)[name], folder / "taugrad-runs")
