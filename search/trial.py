"""A trial: all trainings of one point, in the process that Tune starts for them."""

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from taugrad.platform.places import placed
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.claims import judged
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names
from taugrad.platform.tracking.masking import first_line
from taugrad.platform.tracking.store import open_client, start_run

from .objective import Objective, TrialOutcome
from .run_trial import TrainingState, train

FIRST_VALUE, SECOND_VALUE = "objective_1", "objective_2"
"""The values in a report for the sampler."""

Report = Callable[[dict[str, Any]], None]
T = TypeVar("T")


class StoreUnavailable(Exception):
    """The tracking store did not take the start of a training: the next trial would meet the same."""


class Task(BaseModel):
    """The task of a trial, as plain data."""

    number: int
    label: str
    """The name of its trainings in MLflow."""
    specs: list[str]
    """As JSON, one a seed."""
    problem: str = ""
    """The reason why the spec is not valid; nothing is trained then."""
    known: dict[str, TrialOutcome] = {}
    """Trainings that have finished, by the spec's fingerprint."""
    unfinished: dict[str, str] = {}
    """MLflow runs of interrupted trainings that can be continued, by the spec's fingerprint."""


@dataclass(frozen=True)
class TrialContext:
    """The arguments that all trials of a search share."""

    tracking_uri: str
    parent_run: str
    objective: Objective
    evaluate: str | None = None
    folder: str = ""
    """The working directory of the command, to which relative paths refer."""

    def enter(self) -> None:
        """Changes to the folder, if this machine has it: Tune gives every trial another one."""
        if self.folder and os.path.isdir(self.folder):
            os.chdir(self.folder)


def run_task(task: Task, context: TrialContext, report: Report) -> None:
    """Trains a point with every seed, and reports after every evaluation and every training.

    A report has the fields of `journal.Reported` but number and seconds, a `training` if one is done, the
    sampler's values, and as `notices` what the user should know; `full` is true in the last one.

    Raises:
        Exception: a training failed.
        StoreUnavailable: a training could not begin; the trial has not failed.
        ValueError: a training ended with a value that is not finite.
    """
    if task.problem:
        raise ValueError(task.problem)
    specs = [RunSpec.model_validate_json(spec) for spec in task.specs]
    client = _from_store(lambda: open_client(context.tracking_uri))
    values, metric = context.objective.values, context.objective.metric
    done, spent, notices = list[TrialOutcome](), 0.0, list[str]()

    def report_state(outcome: TrialOutcome, judged: TrialOutcome, spent: float, **more: Any) -> None:
        sampled = dict(zip((FIRST_VALUE, SECOND_VALUE), values(judged), strict=False))
        fields = {"value": outcome.value, "wire_bytes": outcome.wire_bytes, "spent_bytes": spent}
        told = [notices.pop(0) for _ in range(len(notices))]
        report({"evaluation": 0, "share": 1.0, "full": False, "notices": told, **sampled, **fields, **more})

    for i, spec in enumerate(specs):

        def on_evaluation(here: TrainingState, first: bool = i == 0, before: float = spent) -> None:
            now = here.outcome
            # For the sampler, if the trial is stopped here: bytes as they would be at the end.
            judged = TrialOutcome(now.value, now.wire_bytes / here.share)
            evaluation = here.evaluation if first else 0
            report_state(now, judged, before + now.wire_bytes, evaluation=evaluation, share=here.share)

        known = task.known.get(spec.fingerprint())
        if known is not None:
            outcome = known
        else:
            run_id = _from_store(partial(_run, client, task, spec, context.parent_run))
            located = placed(spec, Path(context.folder) if context.folder else None)
            outcome = train(located, client, run_id, context.evaluate, metric, on_evaluation, notices.append)
            outcome = replace(outcome, run_id=run_id)
            spent += outcome.wire_bytes
            if not math.isfinite(outcome.value):
                raise ValueError(f"{metric.label} at the end is {outcome.value}")
        done.append(outcome)
        training = {"fingerprint": spec.fingerprint(), "seed": spec.seed, **asdict(outcome)}
        report_state(outcome, summary(done, metric), spent, training=training, full=len(done) == len(specs))


def summary(outcomes: Sequence[TrialOutcome], metric: Metric) -> TrialOutcome:
    """Several seeds as one point: the value that they are judged by, and the mean bytes."""
    return TrialOutcome(
        judged([outcome.value for outcome in outcomes], metric),
        statistics.fmean(outcome.wire_bytes for outcome in outcomes),
        outcomes[0].examples,
    )


def _from_store(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Exception as error:  # whatever MLflow, its database or the network raises
        raise StoreUnavailable(first_line(error)) from error


def _run(client: Any, task: Task, spec: RunSpec, parent: str) -> str:
    """The training's MLflow run: a new one, or that of an interrupted training."""
    unfinished = task.unfinished.get(spec.fingerprint())
    if unfinished is not None:
        client.update_run(unfinished, status="RUNNING")
        return unfinished
    named = spec.model_copy(update={"name": names.shown(f"{task.label}: {spec.compressor}")[:200]})
    trial = "baseline" if task.number < 0 else str(task.number)
    return start_run(client, named, tags={names.TAG_PARENT: parent, names.TAG_TRIAL: trial})
