"""Results of runs, from their metrics in MLflow."""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names

from .objective import TrialOutcome

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


def outcome_of(metrics: Mapping[str, float], metric: Metric) -> TrialOutcome | None:
    """The result in a run's last metrics; None if it is missing."""
    value, wire_gb = metrics.get(names.eval_metric(metric.name)), metrics.get(names.TOTAL_WIRE_GB)
    if value is None or wire_gb is None:
        return None
    if abs(value) >= sys.float_info.max:  # so MLflow's databases keep an infinity
        value *= 2.0
    examples = metrics.get(names.EVAL_EXAMPLES)
    return TrialOutcome(value, 1e9 * wire_gb, int(examples) if examples else None)


def common_metric(specs: list[RunSpec], source: str) -> Metric:
    """The metric of all of these runs.

    Raises:
        SpecError: they have several, or data or task cannot be built.
    """
    tasks = {(spec.task.model_dump_json(), spec.data.model_dump_json()): spec for spec in specs}
    try:
        metrics = list(dict.fromkeys(counting_metric(spec) for spec in tasks.values()))
    except ValueError as error:
        raise SpecError(source, str(error)) from None
    if len(metrics) > 1:
        labels = " and ".join(metric.label for metric in metrics)
        raise SpecError(source, f"points have different metrics, {labels}; search over runs with one metric")
    return metrics[0]


def finished(client: "MlflowClient", spec: RunSpec, metric: Metric) -> TrialOutcome | None:
    """The result of the latest finished run with the spec's fingerprint, in its experiment.

    Trials of a search are left out, as they may be a user's own training.
    """
    experiment = client.get_experiment_by_name(spec.experiment)
    if experiment is None or experiment.lifecycle_stage == "deleted":
        return None
    runs = client.search_runs(
        [experiment.experiment_id],
        f"tags.`{names.TAG_SPEC_HASH}` = '{spec.fingerprint()}' and attributes.status = 'FINISHED'",
        order_by=["attributes.start_time DESC"],
        max_results=100,
    )
    for run in runs:
        outcome = outcome_of(run.data.metrics, metric)
        if outcome is not None and names.TAG_TRIAL not in run.data.tags:
            return replace(outcome, run_id=str(run.info.run_id))
    return None
