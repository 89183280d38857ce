"""Trainings that are done already, found in MLflow by what they computed."""

from typing import TYPE_CHECKING

from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names

from .trial import Known

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_PAGE = 100


def finished(client: "MlflowClient", spec: RunSpec) -> Known | None:
    """The latest run of the spec's experiment that computed the same, to its end.

    Trials of a search are left out: a user's own training may stand behind them.
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
        metrics = run.data.metrics
        whole = {names.EVAL_ACCURACY, names.TOTAL_WIRE_GB} <= metrics.keys()
        if whole and names.TAG_TRIAL not in run.data.tags:
            wire_bytes = 1e9 * metrics[names.TOTAL_WIRE_GB]
            return Known(
                accuracy=metrics[names.EVAL_ACCURACY], wire_bytes=wire_bytes, run_id=str(run.info.run_id)
            )
    return None
