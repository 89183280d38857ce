"""A run's results for a search: the value of its metric, and the bytes sent."""

import sys
from collections.abc import Mapping

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.tracking import names

from .objective import Outcome


class MetricError(ValueError):
    """There is no metric by which all runs can be compared; the message says why."""


def outcome_of(metrics: Mapping[str, float], metric: Metric) -> Outcome | None:
    """The results in a run's last metrics; None if one of the two is missing."""
    value, wire_gb = metrics.get(names.eval_metric(metric.name)), metrics.get(names.TOTAL_WIRE_GB)
    if value is None or wire_gb is None:
        return None
    if abs(value) >= sys.float_info.max:  # so MLflow's databases keep an infinity
        value *= 2.0
    examples = metrics.get(names.EVAL_EXAMPLES)
    return Outcome(value, 1e9 * wire_gb, int(examples) if examples else None)


def judged_by_accuracy(tags: Mapping[str, str]) -> bool:
    """Whether a run's tags say that its accuracy counts; runs without tags predate other metrics."""
    text = tags.get(names.TAG_METRIC)
    return text is None or Metric.from_json(text).name == ACCURACY.name


def common_metric(specs: list[RunSpec]) -> Metric:
    """The metric that counts for all of these runs.

    Raises:
        MetricError: they have several, or data or task cannot be had.
    """
    tasks = {(spec.task.model_dump_json(), spec.data.model_dump_json()): spec for spec in specs}
    try:
        found = list(dict.fromkeys(counting_metric(spec) for spec in tasks.values()))
    except ValueError as error:
        raise MetricError(str(error)) from None
    if len(found) > 1:
        labels = " and ".join(each.label for each in found)
        raise MetricError(f"points have different metrics, {labels}; search over runs with one metric")
    return found[0]
