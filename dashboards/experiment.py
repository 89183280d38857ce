"""Reads an experiment's runs for figures, tables and reports.

Params and last values of a thousand runs are one or two requests; histories are read for the runs that are
drawn, and thinned there (`thinning`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from taugrad.platform.tracking import names
from taugrad.platform.tracking.experiments import every_run

from .runs import RunHistory, histories, to_history

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient


def all_runs(client: "MlflowClient", experiment_id: str) -> "list[Run]":
    """Every run of an experiment that was not deleted, oldest first, with params, tags and last values."""
    return list(every_run(client, [experiment_id], oldest_first=True))


def compared_runs(found: "Iterable[Run]") -> list[RunHistory]:
    """The runs that trained something: all but the parents of searches.

    Args:
        found: What `all_runs` returned.

    Returns:
        The runs without histories.
    """
    return [to_history(run) for run in found if names.PARAM_RULE in run.data.params]


def with_histories(
    client: "MlflowClient", runs: Sequence[RunHistory], metrics: Iterable[str]
) -> list[RunHistory]:
    """The runs with the histories of some metrics, and of the one that each is judged by.

    Those without a value are left out.

    Args:
        client: The tracking store.
        runs: The runs.
        metrics: Names of metrics; one that a run never logged costs no request.
    """
    several = list(metrics)
    wanted = {
        run.run_id: [
            name
            for name in dict.fromkeys([*several, names.eval_metric(run.metric.name)])
            if name in run.finals and name not in run.metrics
        ]
        for run in runs
    }
    found = histories(client, wanted)
    return [replace(run, metrics={**run.metrics, **found[run.run_id]}) for run in runs]
