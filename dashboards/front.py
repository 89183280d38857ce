"""The figure of a search: all points that were tried, and the front."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from taugrad.platform.tasks.metric import Metric

from . import judging, style
from .labelling import Label, label_points
from .palette import GREY, rule_style

_FAINT = "#B8B8B8"
_DEPTH = 10.0  # percentage points from the best that are drawn: points that hardly learned hide the others
_DEPTH_SHARE = 0.5  # of the best value, likewise where the metric is not in percent


@dataclass(frozen=True)
class FrontPoint:
    """A point of a search that was trained in full."""

    rule: str
    """The compressor's kind."""
    value: float
    """Of the metric, in the unit that people see; mean of the seeds."""
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
    """A metric against wire MB of a search's points, with the front drawn through.

    Args:
        name: The search's.
        points: At least one; those without a byte are left out, a logarithmic axis has no place for them.
        baseline: The run without compression.
        metric: What the values are of.
        stopped: Trials that were stopped early, with what they had reached and sent; crosses.
        page: What it is drawn for.

    Returns:
        The figure.

    Raises:
        ValueError: There is no point to draw.
    """
    drawn = [point for point in points if point.wire_mb > 0 and math.isfinite(point.value)]
    if not drawn:
        raise ValueError("a search without points has no figure")
    everything = [*drawn, *([baseline] if baseline else [])]
    low, high = _limits([each.value for each in (*everything, *stopped)], metric)

    def on_axis(point: FrontPoint) -> bool:
        return low <= point.value <= high

    whole_front = sorted((p for p in drawn if p.place is not None), key=lambda p: p.wire_mb)
    front = [point for point in whole_front if on_axis(point)]
    beyond = [str(point.place) for point in whole_front if not on_axis(point)]
    crosses = [point for point in stopped if point.wire_mb > 0 and on_axis(point)]
    figure, axes = style.new_figure(
        f"What {len(points)} trials of search {name} reached, and what they sent for it",
        "numbered: the front, beaten by no other point; grey: behind it"
        + f"; {'below' if metric.more_is_better else 'above'} the axis: {', '.join(beyond)}" * bool(beyond)
        + "; crosses: stopped early" * bool(crosses)
        + "; bars: 95% intervals" * any(point.interval for point in front),
        "MB sent by all workers (logarithmic)",
        judging.final_label(metric),
        page,
    )
    axes.set_ylim(low, high)
    sent = [each.wire_mb for each in (*everything, *crosses) if on_axis(each)]
    style.log_axis(axes.xaxis, min(sent) / 2, max(sent) * 2, " MB")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}{judging.tick(metric)}"))
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


def _limits(values: Sequence[float], metric: Metric) -> tuple[float, float]:
    """The vertical axis: the best, and what is not far from it."""
    finite = [each for each in values if math.isfinite(each)]
    best = max(finite) if metric.more_is_better else min(finite)
    depth, least = (_DEPTH, 0.3) if metric.unit == "%" else (_DEPTH_SHARE * abs(best), 0.003 * abs(best))
    near = [each for each in finite if abs(each - best) <= depth]
    room = max(least, 0.12 * (max(near) - min(near))) or 1.0
    return min(near) - room, max(near) + room
