"""The figure of a search: every point that was tried, and the front."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from . import style
from .labelling import Label, label_level, label_points
from .palette import GREY, rule_style

_FAINT = "#B8B8B8"
_DEPTH = 10.0  # percentage points below the best that are drawn: points that hardly learned hide the others


@dataclass(frozen=True)
class FrontPoint:
    """A point of a search that was trained in full."""

    rule: str
    """The compressor's kind."""
    accuracy: float
    """Percent, mean of the seeds."""
    spread: float | None
    """Standard deviation of the seeds, percentage points."""
    wire_mb: float
    place: int | None = None
    """On the front, from 1, the one of the fewest bytes; None: another dominates it."""
    best: bool = False
    """Whether the search's objective prefers it to all others."""


def search_front(
    name: str,
    points: Sequence[FrontPoint],
    baseline: FrontPoint | None,
    stopped: Sequence[FrontPoint] = (),
    page: style.Page = style.WIDE,
) -> Figure:
    """Accuracy against wire MB of a search's points, with the front drawn through.

    Args:
        name: The search's.
        points: At least one; those without a byte are left out, a logarithmic axis has no place for them.
        baseline: The run without compression.
        stopped: Trials that were stopped early, with what they had reached and sent; crosses.
        page: What it is drawn for.

    Returns:
        The figure.

    Raises:
        ValueError: There is no point to draw.
    """
    drawn = [point for point in points if point.wire_mb > 0]
    if not drawn:
        raise ValueError("a search without points has no figure")
    everything = [*drawn, *([baseline] if baseline else [])]
    low, high = _limits([each.accuracy for each in (*everything, *stopped)])
    whole_front = sorted((p for p in drawn if p.place is not None), key=lambda p: p.wire_mb)
    front = [point for point in whole_front if point.accuracy >= low]
    below = [str(point.place) for point in whole_front if point.accuracy < low]
    crosses = [point for point in stopped if point.wire_mb > 0 and point.accuracy >= low]
    figure, axes = style.new_figure(
        f"What {len(points)} trials of search {name} reached, and what they sent for it",
        "numbered: the front, beaten by no other point; grey: beaten"
        + f"; below the axis: {', '.join(below)}" * bool(below)
        + "; crosses: stopped early" * bool(crosses)
        + "; bars: standard deviation over seeds" * any(point.spread for point in front),
        "MB sent by all workers (logarithmic)",
        "final test accuracy, %",
        page,
    )
    axes.set_ylim(low, high)
    sent = [each.wire_mb for each in (*everything, *crosses) if each.accuracy >= low]
    style.log_axis(axes.xaxis, min(sent) / 2, max(sent) * 2, " MB")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}%"))
    # Every corner is a vertex of its own, so that labels keep clear of the line between them.
    across = [mb for point in front for mb in (point.wire_mb, point.wire_mb)][1:]
    up = [accuracy for point in front for accuracy in (point.accuracy, point.accuracy)][:-1]
    axes.plot(across, up, color=GREY, linewidth=1, zorder=1)
    for point in drawn:
        if point.place is None and point.accuracy >= low:
            axes.plot([point.wire_mb], [point.accuracy], "o", color=_FAINT, markersize=4, zorder=2)
    for point in crosses:
        axes.plot([point.wire_mb], [point.accuracy], "x", color=_FAINT, markersize=5, zorder=2)
    for point in front:
        color, marker = rule_style(point.rule)
        axes.errorbar(
            [point.wire_mb], [point.accuracy], yerr=point.spread or None, fmt=marker, color=color,
            markersize=10 if point.best else 7, capsize=2, linewidth=1, zorder=4,
        )  # fmt: skip
    if baseline is not None:
        axes.plot([baseline.wire_mb], [baseline.accuracy], "o", color="black", markersize=6, zorder=4)
        axes.axhline(baseline.accuracy, color="black", linewidth=1, linestyle="--", alpha=0.6, zorder=1)
        label_level(axes, baseline.accuracy, f"no compression, {baseline.accuracy:.2f}%")
    label_points(axes, [_label(point) for point in front])
    return figure


def _label(point: FrontPoint) -> Label:
    best = ", best" if point.best else ""
    text = f"{point.place}: {point.rule} {point.accuracy:.2f}%{best}"
    return Label(point.wire_mb, point.accuracy, text, rule_style(point.rule).color)


def _limits(accuracies: Sequence[float]) -> tuple[float, float]:
    """The vertical axis: the best, and what is not far below it."""
    best = max(accuracies)
    low = min(each for each in accuracies if each >= best - _DEPTH)
    room = max(0.3, 0.12 * (best - low))
    return low - room, best + room
