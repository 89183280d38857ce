"""Labels of metrics in figures and tables."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.terminal import printable
from taugrad.platform.tracking import names


def metric_of(tags: Mapping[str, str]) -> Metric:
    """The metric that a run is judged by, from its tags: without the tag, accuracy.

    Raises:
        ValueError: the tag is not a metric.
    """
    text = tags.get(names.TAG_METRIC)
    metric = Metric.from_json(text) if text else ACCURACY
    return replace(metric, label=printable(metric.label), unit=printable(metric.unit))


def common(metrics: Iterable[Metric]) -> list[Metric]:
    """The different metrics, the most common first."""
    return [metric for metric, _ in Counter(metrics).most_common()]


def titled(text: str) -> str:
    """A text as a heading: with a capital letter."""
    return text[0].upper() + text[1:]


def tested(metric: Metric) -> str:
    """`test accuracy`, `test loss`."""
    return metric.label if metric.label.startswith("test ") else f"test {metric.label}"


def axis_label(metric: Metric) -> str:
    """The label of an axis: `test accuracy, %`, `test loss, nats (lower is better)`."""
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{tested(metric)}{unit}{'' if metric.more_is_better else ' (lower is better)'}"


def final_label(metric: Metric) -> str:
    """The label of an axis of final values."""
    return f"final {axis_label(metric)}"


def tick(metric: Metric) -> str:
    """The suffix of numbers on an axis: a percent sign, or nothing."""
    return "%" if metric.unit == "%" else ""


def brief(metric: Metric, seen: float) -> str:
    """A value in a label, with little room: `97.4%`, `2.055 nats`."""
    unit = f" {metric.unit}" if metric.unit not in ("", "%") else metric.unit
    return f"{seen:.{max(0, metric.digits - 1)}f}{unit}"
