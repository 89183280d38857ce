"""Trainings that are done already, found in MLflow by what they computed."""

from typing import TYPE_CHECKING

from taugrad.platform.reading import SpecError
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client, tracking_uri

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


def tracking_client() -> "MlflowClient":
    """The tracking store; asked once, so that nothing starts where nothing could be found again.

    Raises:
        SpecError: it cannot be used.
    """
    uri = tracking_uri()
    try:
        client = open_client(uri)
        client.search_experiments(max_results=1)
    except Exception as error:
        # MLflow and its databases raise many types; to the user all mean this.
        reason = str(error).strip().partition("\n")[0]
        raise SpecError("MLFLOW_TRACKING_URI", [f"{uri} cannot be used: {reason}"]) from error
    return client
