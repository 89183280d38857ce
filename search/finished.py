"""Finds finished trainings in MLflow that computed the same."""

from dataclasses import replace
from typing import TYPE_CHECKING

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names

from .measured import outcome_of
from .objective import Outcome

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_PAGE = 100


def finished(client: "MlflowClient", spec: RunSpec, metric: Metric) -> Outcome | None:
    """The latest finished run of the spec's experiment that computed the same.

    Trials of a search are left out, because they may have used a user's own training.
    """
    experiment = client.get_experiment_by_name(spec.experiment)
    if experiment is None or experiment.lifecycle_stage == "deleted":
        return None
    runs = client.search_runs(
        [experiment.experiment_id],
        f"tags.`{names.TAG_SPEC_HASH}` = '{spec.fingerprint()}' and attributes.status = 'FINISHED'",
        order_by=["attributes.start_time DESC"],
        max_results=_PAGE,
    )
    for run in runs:
        found = outcome_of(run.data.metrics, metric)
        if found is not None and names.TAG_TRIAL not in run.data.tags:
            return replace(found, run_id=str(run.info.run_id))
    return None
