"""A search in MLflow: a parent run, with its trainings nested below."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import every_run
from taugrad.platform.tracking.store import finish_run, open_experiment, who_and_what

from .journal import BASELINE, SearchJournal, Trained
from .measured import outcome_of
from .search import Search
from .space import Choice, dimensions

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

TAG_REASON = "taugrad.reason"
"""A tag of a training: why its trial failed."""
Status = Literal["FINISHED", "FAILED", "KILLED"]
_FOLDER = "search"


def start_parent(client: "MlflowClient", search: Search, experiment: str) -> str:
    """Creates the search's own run.

    Raises:
        TrackingError: the experiment was deleted.
    """
    from mlflow.entities import Param  # noqa: PLC0415 - takes two seconds

    tags = {names.TAG_SEARCH: search.name, **who_and_what()}
    run = client.create_run(open_experiment(client, experiment), tags=tags, run_name=f"search {search.name}")
    run_id = str(run.info.run_id)
    described = {f"search.{key}": str(value) for key, value in search.settings.model_dump().items()}
    for dimension in dimensions(search.tree):
        ends = dimension.alternatives if isinstance(dimension, Choice) else (dimension.low, dimension.high)
        described[f"range.{_param_name(dimension.name)}"] = str(list(ends))
    client.log_batch(run_id, params=[Param(key, value[:500]) for key, value in described.items()])
    return run_id


def _param_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "_-. :/" else "_" for c in name)


def reopen_parent(client: "MlflowClient", run_id: str) -> bool:
    """Continues the MLflow run of an earlier start; returns False if the store does not have it."""
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes two seconds

    try:
        run = client.get_run(run_id)
    except MlflowException:
        return False
    if run.info.lifecycle_stage == "deleted":
        return False
    client.update_run(run_id, status="RUNNING")
    return True


def reconcile(
    client: "MlflowClient", journal: SearchJournal, metric: Metric, *, resumable: bool
) -> dict[str, str]:
    """Makes MLflow and the journal of a killed search agree.

    A training that has finished in MLflow, but is not in the journal, is added to the journal. A training in
    the state RUNNING is marked as killed.

    Returns:
        MLflow runs that can be continued (if `resumable`, from checkpoints), by their spec's fingerprint.
    """
    unfinished: dict[str, str] = {}
    for run in _children(client, journal.record.parent_run):
        run_id, status = str(run.info.run_id), str(run.info.status)
        print_ = str(run.data.tags.get(names.TAG_SPEC_HASH, ""))
        number = _number(run)
        outcome = outcome_of(run.data.metrics, metric) if status == "FINISHED" else None
        done = outcome is not None and math.isfinite(outcome.value)
        journaled = print_ in journal.record.trainings or number not in journal.record.trials
        if outcome is not None and done and not journaled:
            seed, fields = int(run.data.params["seed"]), asdict(outcome) | {"run_id": run_id}
            journal.add(Trained(number=number, fingerprint=print_, seed=seed, **fields))
        elif status == "RUNNING":
            finish_run(client, run_id, "KILLED")
        trial = journal.record.trials.get(number)
        if resumable and not done and trial is not None and trial.ending is None:
            unfinished[print_] = run_id
    return unfinished


def _children(client: "MlflowClient", parent: str) -> "Iterable[Run]":
    experiment = str(client.get_run(parent).info.experiment_id)
    return every_run(client, [experiment], f"tags.`{names.TAG_PARENT}` = '{parent}'")


def _number(run: "Run") -> int:
    """The number of a training's trial; one that no trial has for a run that a user's code nests there."""
    tag = run.data.tags.get(names.TAG_TRIAL, "")
    return int(tag) if tag.isdecimal() else BASELINE if tag == "baseline" else BASELINE - 1


def tag_endings(client: "MlflowClient", journal: SearchJournal) -> None:
    """Tags every training with the ending of its trial, and ends trainings in the state RUNNING."""
    for run in list(_children(client, journal.record.parent_run)):
        trial = journal.record.trials.get(_number(run))
        if str(run.info.status) == "RUNNING":
            failed = trial is not None and trial.ending == "failed"
            finish_run(client, str(run.info.run_id), "FAILED" if failed else "KILLED")
        if trial is None or trial.ending is None or run.data.tags.get(names.TAG_ENDING) == trial.ending:
            continue
        if trial.ending == "full" and run.info.run_id not in {
            training.run_id for training in trial.trainings
        }:
            continue  # an interrupted attempt
        client.set_tag(run.info.run_id, names.TAG_ENDING, trial.ending)
        if trial.reason:
            client.set_tag(run.info.run_id, TAG_REASON, trial.reason)


def finish_parent(client: "MlflowClient", run_id: str, files: Sequence[Path], status: Status) -> None:
    """Ends the search's run, with its tables, figure and specs as artifacts."""
    for path in files:
        is_spec = path.suffix == ".yaml"
        client.log_artifact(run_id, str(path), f"{_FOLDER}/{path.parent.name}" if is_spec else _FOLDER)
    finish_run(client, run_id, status)
