"""The figures of a search: its front, and how each dimension changes the metric."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from taugrad.platform.tasks.metric import Metric

from . import metric_labels, style, ticks
from .labelling import Label, label_points
from .palette import GREY, STOPPED, pale, rule_style
from .runs import RunHistory, number

_FAINT = "#B8B8B8"
_DEPTH = 10.0  # percentage points from the best that are drawn: points that hardly learned hide the others
_DEPTH_SHARE = 0.5  # of the best value, likewise where the metric is not in percent

_LOG_SPAN = 10.0  # values of a dimension that span more stand on a logarithmic axis


@dataclass(frozen=True)
class FrontPoint:
    """A point of a search that was trained in full."""

    rule: str
    """The compressor's kind."""
    value: float
    """The metric in its displayed unit, mean of the seeds."""
    interval: tuple[float, float] | None
    """The 95% interval of that mean, where there is one."""
    wire_mb: float
    place: int | None = None
    """On the front, from 1, the one of the fewest bytes; None: another dominates it."""
    best: bool = False
    """Whether the search's objective prefers it to all others."""


def search_front(
    name: str,
    points: Sequence[FrontPoint],
    baseline: FrontPoint | None,
    metric: Metric,
    stopped: Sequence[FrontPoint] = (),
    page: style.Page = style.WIDE,
) -> Figure:
    """Metric over wire MB of a search's trials, with the Pareto front drawn as a line.

    Args:
        name: The search's.
        points: At least one; points of 0 bytes are left out of the logarithmic axis.
        baseline: The run without compression.
        metric: What the values are of.
        stopped: Trials that were stopped early, drawn as crosses.
        page: The page's size.

    Raises:
        ValueError: There is no point to draw.
    """
    drawn = [point for point in points if point.wire_mb > 0 and math.isfinite(point.value)]
    if not drawn:
        raise ValueError("a search without points has no figure")
    everything = [*drawn, *([baseline] if baseline else [])]
    low, high = _limits((*everything, *stopped), metric)

    def on_axis(point: FrontPoint) -> bool:
        return low <= point.value <= high

    front = sorted((p for p in drawn if p.place is not None and on_axis(p)), key=lambda p: p.wire_mb)
    crosses = [point for point in stopped if point.wire_mb > 0 and on_axis(point)]
    figure, axes = style.new_figure(
        f"{name}: what {len(points)} trials reached, and what they sent for it",
        "numbered: the front, beaten by no other point; grey: behind it"
        + _left_out([*points, *stopped], on_axis, metric)
        + "; crosses: stopped early" * bool(crosses)
        + "; bars: 95% intervals" * any(point.interval for point in front),
        "MB sent by all workers (logarithmic)",
        metric_labels.final_label(metric),
        page,
    )
    axes.set_ylim(low, high)
    sent = [point.wire_mb for point in (*everything, *crosses) if on_axis(point)]
    style.log_axis(axes.xaxis, min(sent) / 2, max(sent) * 2, " MB")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}{metric_labels.tick(metric)}"))
    # Every corner is a vertex of its own, so that labels keep clear of the line between them.
    across = [mb for point in front for mb in (point.wire_mb, point.wire_mb)][1:]
    up = [value for point in front for value in (point.value, point.value)][:-1]
    axes.plot(across, up, color=GREY, linewidth=1, zorder=1)
    for point in drawn:
        if point.place is None and on_axis(point):
            axes.plot([point.wire_mb], [point.value], "o", color=_FAINT, markersize=4, zorder=2)
    for point in crosses:
        axes.plot([point.wire_mb], [point.value], "x", color=_FAINT, markersize=5, zorder=2)
    for point in front:
        color, marker = rule_style(point.rule)
        axes.errorbar(
            [point.wire_mb], [point.value], yerr=_bars(point), fmt=marker, color=color,
            markersize=10 if point.best else 7, capsize=2, linewidth=1, zorder=4,
        )  # fmt: skip
    labels = [_label(point, metric) for point in front]
    if baseline is not None:
        axes.plot([baseline.wire_mb], [baseline.value], "o", color="black", markersize=6, zorder=4)
        axes.axhline(baseline.value, color="black", linewidth=1, linestyle="--", alpha=0.6, zorder=1)
        text = f"no compression, {metric.written(baseline.value)}"
        labels.append(Label(baseline.wire_mb, baseline.value, text, "black"))
    label_points(axes, labels)
    return figure


def _bars(point: FrontPoint) -> list[list[float]] | None:
    if point.interval is None:
        return None
    low, high = point.interval
    return [[max(0.0, point.value - low)], [max(0.0, high - point.value)]]


def _label(point: FrontPoint, metric: Metric) -> Label:
    best = ", best" if point.best else ""
    text = f"{point.place}: {point.rule} {metric.written(point.value)}{best}"
    return Label(point.wire_mb, point.value, text, rule_style(point.rule).color)


def _left_out(points: Sequence[FrontPoint], on_axis: Callable[[FrontPoint], bool], metric: Metric) -> str:
    """The points that are not drawn, for the note: how many, and which of them are on the front."""
    finite = [point for point in points if math.isfinite(point.value)]
    without = len(points) - len([point for point in finite if point.wire_mb > 0])
    beyond = [point for point in finite if point.wire_mb > 0 and not on_axis(point)]
    places = sorted(point.place for point in beyond if point.place is not None)
    of_front = f" (of the front {', '.join(map(str, places))})" if places else ""
    side = "below" if metric.more_is_better else "above"
    return f"; {len(beyond)} more {side} the axis{of_front}" * bool(beyond) + (
        f"; {without} without a value or bytes" * bool(without)
    )


def _limits(points: Sequence[FrontPoint], metric: Metric) -> tuple[float, float]:
    """The vertical axis: the best, and what is not far from it; intervals of the front are whole."""
    finite = [point.value for point in points if math.isfinite(point.value)]
    best = max(finite) if metric.more_is_better else min(finite)
    depth, least = (_DEPTH, 0.3) if metric.unit == "%" else (_DEPTH_SHARE * abs(best), 0.003 * abs(best))
    near = [value for value in finite if abs(value - best) <= depth]
    room = max(least, 0.12 * (max(near) - min(near))) or 1.0
    ends = [
        end
        for point in points
        if point.interval is not None and point.place is not None and point.value in near
        for end in point.interval
    ]
    return min([min(near) - room, *(end - 0.2 * room for end in ends)]), max(
        [max(near) + room, *(end + 0.2 * room for end in ends)]
    )


Mark = Literal["front", "beaten", "stopped"]
"""The place of a trial: on the front, beaten by it, or stopped early."""


@dataclass(frozen=True, eq=False)
class Trial:
    """A run of a search."""

    run: RunHistory
    value: float
    """The metric in its displayed unit, when the run ended or was stopped."""
    mark: Mark


def value_by_dimension(
    trials: Sequence[Trial], named: Mapping[str, str], metric: Metric, page: style.Page = style.WIDE
) -> Figure:
    """Metric of trials over each numeric dimension of a search, a panel for each.

    Args:
        trials: With a value.
        named: The dimensions' params, with their displayed names.
        metric: What the values are of.
        page: The page's size.

    Raises:
        ValueError: No dimension has two numbers.
    """
    panels = {
        param: [(trial, x) for trial in trials if (x := number(trial.run.params.get(param))) is not None]
        for param in named
    }
    panels = {param: points for param, points in panels.items() if len({x for _, x in points}) > 1}
    if not panels:
        raise ValueError("no dimension of the search has two numbers")
    figure, drawn = style.new_panels(
        f"How each searched field affects {metric.label}",
        f"strong: on the front of {metric.label} and bytes; pale: behind it; grey crosses: stopped early",
        "value of the dimension",
        metric_labels.axis_label(metric),
        [(named[param], "black") for param in panels],
        style.Page(page.width, page.height, min(page.columns, 2), 2.6, page.left),
        sharex=False,
        key=[
            style.Key(rule, rule_style(rule).color) for rule in sorted({trial.run.rule for trial in trials})
        ],
    )
    for axes, points in zip(drawn, panels.values(), strict=True):
        _draw(axes, points)
    return figure


def _draw(axes: Axes, points: Sequence[tuple[Trial, float]]) -> None:
    low, high = min(x for _, x in points), max(x for _, x in points)
    if low > 0 and high > _LOG_SPAN * low:
        style.log_axis(axes.xaxis, low / 1.6, high * 1.6, "")
    else:
        room = 0.06 * (high - low)
        axes.set_xlim(low - room, high + room)
        whole = all(x == round(x) for _, x in points)
        axes.xaxis.set_major_locator(ticks.linear(6, style.TICK_SIZE, whole=whole))
    for trial, x in points:
        color, marker = rule_style(trial.run.rule)
        if trial.mark == "stopped":
            axes.plot([x], [trial.value], "x", color=STOPPED, markersize=6, markeredgewidth=1.6, zorder=2)
        else:
            strong = trial.mark == "front"
            axes.plot(
                [x], [trial.value], marker, color=color if strong else pale(color),
                markersize=7 if strong else 5, zorder=4 if strong else 3,
            )  # fmt: skip
