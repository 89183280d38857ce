"""How figures and tables name the metric that counts."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from taugrad.platform.tasks.metric import ACCURACY, Metric
from taugrad.platform.terminal import printable
from taugrad.platform.tracking import names


def metric_of(tags: Mapping[str, str]) -> Metric:
    """The metric that a run is judged by; runs without that tag predate metrics other than accuracy.

    Raises:
        ValueError: the tag holds no metric.
    """
    text = tags.get(names.TAG_METRIC)
    if text is None:
        return ACCURACY
    metric = Metric.from_json(text)
    return replace(metric, label=printable(metric.label), unit=printable(metric.unit))


def common(metrics: Iterable[Metric]) -> list[Metric]:
    """Each metric once, the one that most runs have first."""
    counts: dict[Metric, int] = {}
    for each in metrics:
        counts[each] = counts.get(each, 0) + 1
    return sorted(counts, key=lambda each: -counts[each])


def tested(metric: Metric) -> str:
    """`test accuracy`, `test loss`."""
    return metric.label if metric.label.startswith("test ") else f"test {metric.label}"


def axis_label(metric: Metric) -> str:
    """Of an axis: `test accuracy, %`; of a loss which way is better."""
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{tested(metric)}{unit}{'' if metric.more_is_better else ' (lower is better)'}"


def final_label(metric: Metric) -> str:
    """The same of the value at the end."""
    return f"final {axis_label(metric)}"


def tick(metric: Metric) -> str:
    """What stands behind a number on an axis: a percent sign, or nothing."""
    return "%" if metric.unit == "%" else ""


def brief(metric: Metric, seen: float) -> str:
    """A value in a label, where there is little room: `97.4%`, `2.055 nats`."""
    unit = f" {metric.unit}" if metric.unit not in ("", "%") else metric.unit
    return f"{seen:.{max(0, metric.digits - 1)}f}{unit}"
