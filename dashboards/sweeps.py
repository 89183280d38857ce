"""What a threshold, or a floor, does to accuracy, bytes and speed: figures over settings."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from taugrad.platform.tracking import names

from . import style, ticks
from .groups import Estimate, Group, baseline, rules
from .labelling import Label, label_level, label_points
from .palette import GREY, rule_style

PARAM_FLOOR = "compressor.floor"

_MB_PER_GB = 1000.0
_LOWEST_PART = (
    0.25  # of the accuracies that may lie below the axis: a run that did not learn hides the others
)
_MOST_LABELS = 8  # settings of a method that are named; of more only the front is
_FEWEST_VALUES = 2  # of a threshold or floor, for a figure of what it does
_FAINT = "#C9C9C9"

_Placed: TypeAlias = tuple[Group, Estimate, Estimate]
"""A setting, its wire MB, its accuracy in percent."""


def accuracy_by_setting(groups: Sequence[Group], page: style.Page = style.WIDE) -> Figure:
    """Accuracy against MB for all thresholds of each method (Anoosheh's figures 3, 5 and 7).

    Args:
        groups: With a final accuracy and wire bytes.
        page: What it is drawn for.

    Returns:
        One panel a rule, with the other rules' points in grey and the baseline dashed.

    Raises:
        ValueError: Nothing is compressed.
    """
    by_rule = rules(groups)
    if not by_rule:
        raise ValueError("no compressed run has an accuracy and wire bytes")
    figure, panels = style.new_panels(
        "What accuracy each method reaches, and what it sends for it",
        "each point a setting, grey: other methods; dashed: no compression; bars, band: 95% over seeds",
        "MB on the wire, all workers, whole run (logarithmic)",
        "final test accuracy, %",
        [(rule, rule_style(rule).color) for rule in by_rule],
        page,
    )
    everything = [(group, *_point(group)) for group in groups]
    low, high = _accuracy_limits([accuracy for _, _, accuracy in everything])
    sent = [mb.mean for _, mb, _ in everything]
    for axes in panels:
        axes.set_ylim(low, high)
        axes.yaxis.set_major_locator(ticks.linear(4, style.TICK_SIZE))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        style.log_axis(axes.xaxis, min(sent) / 2.2, max(sent) * 2.2, "", most=4)
    for axes, (rule, members) in zip(panels, by_rule.items(), strict=True):
        others = [
            (mb.mean, accuracy.mean)
            for group, mb, accuracy in everything
            if group.rule != rule and not group.is_baseline
        ]
        axes.plot([x for x, _ in others], [y for _, y in others], "o", color=_FAINT, markersize=3, zorder=1)
        reference = baseline(groups)
        if reference is not None:
            mb, accuracy = _point(reference)
            _level(axes, accuracy)
            axes.plot([mb.mean], [accuracy.mean], "o", color="black", markersize=5, zorder=3)
        _sweep(axes, members, low)
    return figure


def accuracy_by_floor(groups: Sequence[Group], page: style.Page = style.WIDE) -> Figure:
    """Accuracy by the bits that a layer gets at least (Oland-Raj's figure 4).

    Args:
        groups: With a final accuracy.
        page: What it is drawn for.

    Returns:
        The figure: a point for every run, the mean with its interval, the baseline dashed.

    Raises:
        ValueError: Fewer than two floors were tried.
    """
    floors = [(floor, group) for group in groups if (floor := group.param(PARAM_FLOOR)) is not None]
    if len({floor for floor, _ in floors}) < _FEWEST_VALUES:
        raise ValueError(f"no two runs differ in {PARAM_FLOOR}")
    floors.sort(key=lambda each: each[0])
    figure, axes = style.new_figure(
        "What the floor c does to accuracy",
        "bits of a layer = its entropy + c; point: a run; bar: mean and 95% interval over seeds",
        "floor c, bits",
        "final test accuracy, %",
        page,
    )
    style_ = rule_style("entropy")
    reference = baseline(groups)
    level = reference.estimate(names.EVAL_ACCURACY, 100) if reference else None
    estimates = [(floor, group.estimate(names.EVAL_ACCURACY, 100)) for floor, group in floors]
    means = [each.mean for _, each in estimates if each is not None]
    low, high = _accuracy_limits([each for each in (*(e for _, e in estimates), level) if each is not None])
    axes.set_ylim(low, high)
    positions = [floor for floor, _ in floors]
    axes.set_xlim(min(positions) - 0.6, max(positions) + 0.6)
    axes.xaxis.set_major_locator(ticks.linear(9, style.TICK_SIZE, whole=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}%"))
    axes.plot(positions, means, color=style_.color, linewidth=1.4, zorder=2)
    for floor, group in floors:
        runs = [100 * run.finals[names.EVAL_ACCURACY] for run in group.runs]
        axes.plot([floor] * len(runs), runs, style_.marker, color=style_.color, markersize=5, zorder=3)
        _interval(axes, floor, group.estimate(names.EVAL_ACCURACY, 100), style_.color)
    labels = [
        Label(floor, mean, f"{mean:.1f}%, {_mb(group)}", style_.color)
        for (floor, group), mean in zip(floors, means, strict=True)
        if mean >= low and len(floors) <= _MOST_LABELS
    ]
    if level is not None:
        _level(axes, level)
    label_points(axes, labels)
    if level is not None:
        label_level(axes, level.mean, f"without compression, {level.mean:.1f}%")
    return figure


def speed_and_compression(groups: Sequence[Group], page: style.Page = style.WIDE) -> Figure:
    """Speed and compression by threshold (Strom's table 3).

    Args:
        groups: With a tau that is a number.
        page: What it is drawn for.

    Returns:
        Two panels: compression, and training time of the whole run; one line a rule.

    Raises:
        ValueError: Fewer than two thresholds were tried.
    """
    by_rule = {
        rule: sorted((group for group in members if group.tau), key=lambda group: group.tau or 0)
        for rule, members in rules(groups).items()
    }
    by_rule = {rule: members for rule, members in by_rule.items() if members}
    if len({group.tau for members in by_rule.values() for group in members}) < _FEWEST_VALUES:
        raise ValueError("no two runs differ in a threshold that is a number")
    figure, (compression, seconds) = style.new_panels(
        "What the threshold does to bytes and to time",
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
            found = [(g, each) for g, each in zip(members, estimates, strict=True) if each is not None]
            if not found:
                continue
            color, marker = rule_style(rule)
            xs, ys = [group.tau or 0 for group, _ in found], [each.mean for _, each in found]
            axes.plot(xs, ys, color=color, marker=marker, markersize=5, linewidth=1.4)
            for group, each in found:
                _interval(axes, group.tau or 0, each, color)
            ends.append(Label(xs[-1], ys[-1], rule, color))
        label_points(axes, ends)
    return figure


def _two_scales(
    compression: Axes, seconds: Axes, by_rule: Mapping[str, Sequence[Group]], groups: Sequence[Group]
) -> None:
    members = [group for each in by_rule.values() for group in each]
    ratios = [each.mean for g in members if (each := g.compression) is not None]
    times = [each.high for g in members if (each := g.estimate(names.TOTAL_SECONDS)) is not None]
    if ratios:
        style.log_axis(compression.yaxis, min(0.8, min(ratios) / 1.5), max(ratios) * 2, "x")
        compression.axhline(1.0, color="black", linewidth=1.0, linestyle="--", alpha=0.6)
    reference = baseline(groups)
    level = reference.estimate(names.TOTAL_SECONDS) if reference else None
    if level is not None:
        times.append(level.high)
        _level(seconds, level)
    seconds.set_ylim(0, 1.2 * max(times, default=1.0))


def _sweep(axes: Axes, members: Sequence[Group], low: float) -> None:
    """One rule's settings, in the order of what they send, each with its setting."""
    color, marker = rule_style(members[0].rule)
    points = [(group, *_point(group)) for group in members]
    if len(points) > _MOST_LABELS:
        axes.plot(
            [mb.mean for _, mb, _ in points], [accuracy.mean for _, _, accuracy in points], marker,
            color=color, markersize=2.5, alpha=0.5, zorder=2,
        )  # fmt: skip
        points = _some(_front(points))
    axes.plot(
        [mb.mean for _, mb, _ in points],
        [accuracy.mean for _, _, accuracy in points],
        color=color,
        linewidth=1.2,
        zorder=2,
    )
    labels = []
    for group, mb, accuracy in points:
        if accuracy.mean < low:  # said, where it cannot be shown
            axes.plot([mb.mean], [low], marker="v", color=color, markersize=6, clip_on=False, zorder=4)
            labels.append(Label(mb.mean, low, f"{_label(group)} ({accuracy.mean:.1f}%)", color))
            continue
        axes.plot([mb.mean], [accuracy.mean], marker=marker, color=color, markersize=5, zorder=3)
        _interval(axes, mb.mean, accuracy, color)
        labels.append(Label(mb.mean, accuracy.mean, _label(group), color))
    label_points(axes, labels, size=style.SMALL_SIZE)


def _front(points: Sequence[_Placed]) -> list[_Placed]:
    """The settings that no other beats in both bytes and accuracy, fewest bytes first."""
    front: list[_Placed] = []
    for point in sorted(points, key=lambda each: (each[1].mean, -each[2].mean)):
        if not front or point[2].mean > front[-1][2].mean:
            front.append(point)
    return front


def _some(points: Sequence[_Placed]) -> list[_Placed]:
    """As many as labels have room, from the first to the last."""
    if len(points) <= _MOST_LABELS:
        return list(points)
    last = len(points) - 1
    return [points[round(i * last / (_MOST_LABELS - 1))] for i in range(_MOST_LABELS)]


def _label(group: Group) -> str:
    return group.setting or group.name


def _point(group: Group) -> tuple[Estimate, Estimate]:
    """Wire MB and accuracy in percent; `by_setting` keeps only groups that have both."""
    mb = group.estimate(names.TOTAL_WIRE_GB, _MB_PER_GB)
    accuracy = group.estimate(names.EVAL_ACCURACY, 100)
    assert mb is not None
    assert accuracy is not None
    return mb, accuracy


def _mb(group: Group) -> str:
    mb = group.estimate(names.TOTAL_WIRE_GB, _MB_PER_GB)
    return f"{style.decimal(mb.mean)} MB" if mb else ""


def _accuracy_limits(accuracies: Sequence[Estimate]) -> tuple[float, float]:
    """Limits that show the accuracies that matter: a quarter of them may be far below the rest."""
    means = sorted(each.mean for each in accuracies)
    top, bottom = means[-1], means[int(_LOWEST_PART * len(means))]
    room = max(0.3, 0.6 * (top - bottom))
    low = max(means[0], bottom - 2 * room) if means[0] < bottom - 2 * room else means[0]
    return low - 0.5 * room, top + 0.9 * room


def _level(axes: Axes, level: Estimate | None) -> None:
    """The baseline: a dashed line, and its interval as a band."""
    if level is None:
        return
    axes.axhline(level.mean, color="black", linewidth=1.0, linestyle="--", alpha=0.6, zorder=1)
    if level.count > 1:
        axes.axhspan(level.low, level.high, color=GREY, alpha=0.12, linewidth=0, zorder=0)


def _interval(axes: Axes, x: float, each: Estimate | None, color: str) -> None:
    if each is not None and each.count > 1:
        axes.plot([x, x], [each.low, each.high], color=color, linewidth=1.2, alpha=0.8, zorder=3)
