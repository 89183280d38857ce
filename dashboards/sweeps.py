"""Figures over the settings of methods: the metric, bytes and seconds by threshold or floor."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from taugrad.platform.tasks.metric import Metric
from taugrad.platform.tracking import names

from . import metric_labels, style, ticks
from .groups import Estimate, Group, baseline, rules
from .labelling import Label, label_points
from .palette import GREY, rule_style

PARAM_FLOOR = "compressor.floor"

_MB_PER_GB = 1000.0
_WORST_PART = 0.25  # of the values that may lie beyond the axis: a run that did not learn hides the others
_MOST_LABELS = 8  # settings of a method that are labelled; of more only the front is
_FEWEST_VALUES = 2  # of a threshold or floor, for a figure of its effect
_FAINT = "#C9C9C9"

_Point: TypeAlias = tuple[Group, Estimate, Estimate]
"""A setting, its wire MB, and the metric in its displayed unit."""


def value_by_setting(groups: Sequence[Group], page: style.Page = style.WIDE) -> Figure:
    """Metric over megabytes for all thresholds of each method (Anoosheh's figures 3, 5 and 7).

    The groups have a final value of one metric, and wire bytes. One panel a rule, with the other rules'
    points in grey and the baseline dashed. Raises ValueError if nothing is compressed.
    """
    by_rule = rules(groups)
    if not by_rule:
        raise ValueError("no compressed run has a value and wire bytes")
    metric = groups[0].metric
    figure, panels = style.new_panels(
        f"What {metric.label} each method reaches, and what it sends for it",
        "each point a setting, grey: other methods; dashed: no compression; bars, band: 95% over seeds",
        "MB on the wire, all workers, whole run (logarithmic)",
        metric_labels.final_label(metric),
        [(rule, rule_style(rule).color) for rule in by_rule],
        page,
    )
    everything = [(group, *_point(group)) for group in groups]
    low, high = _limits([value for _, _, value in everything], metric)
    sent = [mb.mean for _, mb, _ in everything]
    for axes in panels:
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(ticks.linear(4, style.TICK_SIZE))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        style.log_axis(axes.xaxis, min(sent) / 2.2, max(sent) * 2.2, "", most=4)
    for axes, (rule, members) in zip(panels, by_rule.items(), strict=True):
        others = [
            (mb.mean, value.mean)
            for group, mb, value in everything
            if group.rule != rule and not group.is_baseline
        ]
        axes.plot([x for x, _ in others], [y for _, y in others], "o", color=_FAINT, markersize=3, zorder=1)
        reference = baseline(groups)
        if reference is not None:
            mb, value = _point(reference)
            _level(axes, value)
            axes.plot([mb.mean], [value.mean], "o", color="black", markersize=5, zorder=3)
        _sweep(axes, members, (low, high))
    return figure


def value_by_floor(groups: Sequence[Group], page: style.Page = style.WIDE) -> Figure:
    """Metric over the fewest bits of a layer (Oland-Raj's figure 4).

    The groups have a final value of one metric. A point for every run, the mean with its interval, the
    baseline dashed. Raises ValueError if fewer than two floors were tried.
    """
    floors = [(floor, group) for group in groups if (floor := group.param(PARAM_FLOOR)) is not None]
    if len({floor for floor, _ in floors}) < _FEWEST_VALUES:
        raise ValueError(f"no two runs differ in {PARAM_FLOOR}")
    floors.sort(key=lambda pair: pair[0])
    metric = groups[0].metric
    figure, axes = style.new_figure(
        f"How the floor c affects {metric.label}",
        "bits of a layer = its entropy + c; point: a run; bar: mean and 95% interval over seeds",
        "floor c, bits",
        metric_labels.final_label(metric),
        page,
    )
    color, marker = rule_style("entropy")
    reference = baseline(groups)
    level = reference.value if reference else None
    estimates = [group.value for _, group in floors if group.value is not None]
    means = [estimate.mean for estimate in estimates]
    low, high = _limits([*estimates, *([level] if level else [])], metric)
    axes.set_ylim(low, high)
    positions = [floor for floor, _ in floors]
    axes.set_xlim(min(positions) - 0.6, max(positions) + 0.6)
    axes.xaxis.set_major_locator(ticks.linear(9, style.TICK_SIZE, whole=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}{metric_labels.tick(metric)}"))
    for tau in dict.fromkeys(group.tau for _, group in floors):
        line = [(floor, mean) for (floor, group), mean in zip(floors, means, strict=True) if group.tau == tau]
        axes.plot(*zip(*line, strict=True), color=color, linewidth=1.4, zorder=2)
    for floor, group in floors:
        runs = [value for run in group.runs if (value := run.value) is not None]
        axes.plot([floor] * len(runs), runs, marker, color=color, markersize=5, zorder=3)
        _interval(axes, floor, group.value, color)
    labels = [
        Label(floor, mean, f"{metric_labels.brief(metric, mean)}, {_mb(group)}", color)
        for (floor, group), mean in zip(floors, means, strict=True)
        if low <= mean <= high and len(floors) <= _MOST_LABELS
    ]
    if level is not None:
        _level(axes, level)
        text = f"without compression, {metric_labels.brief(metric, level.mean)}"
        labels.append(Label(axes.get_xlim()[1], level.mean, text, "black"))
    label_points(axes, labels)
    return figure


def speed_and_compression(groups: Sequence[Group], page: style.Page = style.WIDE) -> Figure:
    """Speed and compression by threshold (Strom's table 3).

    Two panels, compression and training time of the whole run; one line for each rule whose tau is a number.
    Raises ValueError if fewer than two thresholds were tried.
    """
    by_rule = {
        rule: sorted((group for group in members if group.tau), key=lambda group: group.tau or 0)
        for rule, members in rules(groups).items()
    }
    by_rule = {rule: members for rule, members in by_rule.items() if members}
    if len({group.tau for members in by_rule.values() for group in members}) < _FEWEST_VALUES:
        raise ValueError("no two runs differ in a threshold that is a number")
    figure, (compression, seconds) = style.new_panels(
        "How the threshold affects bytes and time",
        "time on the machine that trained, whose network may be faster than yours; dashed: no compression",
        "threshold tau (logarithmic)",
        "",
        [("times fewer bytes on the wire", "black"), ("seconds of training", "black")],
        style.Page(page.width, page.height, min(page.columns, 2), 2.9, page.left),
        sharey=False,
    )
    taus = [group.tau for members in by_rule.values() for group in members if group.tau]
    _two_scales(compression, seconds, by_rule, groups)
    style.log_axis(compression.xaxis, min(taus) / 1.6, max(taus) * 1.6, "")
    for axes in (compression, seconds):
        ends = []
        for rule, members in by_rule.items():
            estimates = [
                group.compression if axes is compression else group.estimate(names.TOTAL_SECONDS)
                for group in members
            ]
            points = [(group, value) for group, value in zip(members, estimates, strict=True) if value]
            if not points:
                continue
            color, marker = rule_style(rule)
            xs, ys = [group.tau or 0 for group, _ in points], [estimate.mean for _, estimate in points]
            axes.plot(xs, ys, color=color, marker=marker, markersize=5, linewidth=1.4)
            for group, estimate in points:
                _interval(axes, group.tau or 0, estimate, color)
            ends.append(Label(xs[-1], ys[-1], rule, color))
        label_points(axes, ends)
    return figure


def _two_scales(
    compression: Axes, seconds: Axes, by_rule: Mapping[str, Sequence[Group]], groups: Sequence[Group]
) -> None:
    compressed = [group for members in by_rule.values() for group in members]
    ratios = [ratio.mean for group in compressed if (ratio := group.compression) is not None]
    times = [time.high for group in compressed if (time := group.estimate(names.TOTAL_SECONDS)) is not None]
    if ratios:
        style.log_axis(compression.yaxis, min(0.8, min(ratios) / 1.5), max(ratios) * 2, "x")
        compression.axhline(1.0, color="black", linewidth=1.0, linestyle="--", alpha=0.6)
    reference = baseline(groups)
    level = reference.estimate(names.TOTAL_SECONDS) if reference else None
    if level is not None:
        times.append(level.high)
        _level(seconds, level)
    seconds.set_ylim(0, 1.2 * max(times, default=1.0))


def _sweep(axes: Axes, members: Sequence[Group], limits: tuple[float, float]) -> None:
    """One rule's settings, in the order of what they send, each with its setting."""
    metric, (low, high) = members[0].metric, limits
    edge, beyond = (low, "v") if metric.more_is_better else (high, "^")
    color, marker = rule_style(members[0].rule)
    points = [(group, *_point(group)) for group in members]
    if len(points) > _MOST_LABELS:
        axes.plot(
            [mb.mean for _, mb, _ in points], [value.mean for _, _, value in points], marker,
            color=color, markersize=2.5, alpha=0.5, zorder=2,
        )  # fmt: skip
        points = _some(_front(points))
    axes.plot(
        [mb.mean for _, mb, _ in points],
        [value.mean for _, _, value in points],
        color=color,
        linewidth=1.2,
        zorder=2,
    )
    labels = []
    for group, mb, value in points:
        if not low <= value.mean <= high:  # its value is written, as it cannot be drawn
            axes.plot([mb.mean], [edge], marker=beyond, color=color, markersize=6, clip_on=False, zorder=4)
            text = f"{_label(group)} ({metric_labels.brief(metric, value.mean)})"
            labels.append(Label(mb.mean, edge, text, color))
            continue
        axes.plot([mb.mean], [value.mean], marker=marker, color=color, markersize=5, zorder=3)
        _interval(axes, mb.mean, value, color)
        labels.append(Label(mb.mean, value.mean, _label(group), color))
    label_points(axes, labels, size=style.SMALL_SIZE)


def _front(points: Sequence[_Point]) -> list[_Point]:
    """The Pareto front in bytes and the metric, fewest bytes first."""
    front: list[_Point] = []
    metric = points[0][0].metric
    for point in sorted(points, key=lambda point: (point[1].mean, -metric.sign * point[2].mean)):
        if not front or metric.is_better(point[2].mean, front[-1][2].mean):
            front.append(point)
    return front


def _some(points: Sequence[_Point]) -> list[_Point]:
    """At most _MOST_LABELS points, evenly spaced, the ends included."""
    if len(points) <= _MOST_LABELS:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (_MOST_LABELS - 1))] for i in range(_MOST_LABELS)]


def _label(group: Group) -> str:
    return group.setting or group.name


def _point(group: Group) -> tuple[Estimate, Estimate]:
    """Wire MB and the metric; `by_setting` keeps only groups that have both."""
    mb, value = group.estimate(names.TOTAL_WIRE_GB, _MB_PER_GB), group.value
    assert mb is not None
    assert value is not None
    return mb, value


def _mb(group: Group) -> str:
    mb = group.estimate(names.TOTAL_WIRE_GB, _MB_PER_GB)
    return f"{style.decimal(mb.mean)} MB" if mb else ""


def _limits(values: Sequence[Estimate], metric: Metric) -> tuple[float, float]:
    """Limits of the axis, which may leave out the worst quarter of the values."""
    sign = metric.sign
    means = sorted(sign * value.mean for value in values)  # the worst first
    top, bottom = means[-1], means[int(_WORST_PART * len(means))]
    least = 0.3 if metric.unit == "%" else 0.003 * abs(top)
    room = max(least, 0.6 * (top - bottom)) or 1.0
    worst = max(means[0], bottom - 2 * room)
    low, high = sorted((sign * (worst - 0.5 * room), sign * (top + 0.9 * room)))
    return low, high


def _level(axes: Axes, level: Estimate | None) -> None:
    """The baseline: a dashed line, and its interval as a band."""
    if level is None:
        return
    axes.axhline(level.mean, color="black", linewidth=1.0, linestyle="--", alpha=0.6, zorder=1)
    if level.count > 1:
        axes.axhspan(level.low, level.high, color=GREY, alpha=0.12, linewidth=0, zorder=0)


def _interval(axes: Axes, x: float, estimate: Estimate | None, color: str) -> None:
    if estimate is not None and estimate.count > 1:
        axes.plot([x, x], [estimate.low, estimate.high], color=color, linewidth=1.2, alpha=0.8, zorder=3)
