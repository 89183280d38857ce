"""The figure of network/network_growth.py: bytes and seconds of a step by the number of workers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from taugrad.dashboards.figures import save
from taugrad.dashboards.palette import GREY
from taugrad.dashboards.style import WIDE, Key, log_axis, new_panels
from taugrad.search.plan.planning import Prediction

_COLORS = ("#000000", "#8C8C8C", "#D55E00", "#0072B2", "#009E73")
"""Okabe and Ito's; both all-reduces in black and grey."""


@dataclass(frozen=True)
class Points:
    """What was measured, by way and number of workers."""

    received: Mapping[tuple[str, int], float]
    """Bytes of a worker in a step."""
    seconds: Mapping[tuple[str, int], float]
    """Of a step."""


def draw(path: Path, planned: Mapping[str, Sequence[Prediction]], measured: Points) -> None:
    """Draws two panels.

    Args:
        path: the file, .png or .svg.
        planned: by way, for each number of workers; drawn as lines.
        measured: drawn as marks.
    """
    colors = dict(zip(planned, _COLORS, strict=False))
    figure, (left, right) = new_panels(
        "A step with more and more workers",
        "lines: planned, a core for each worker; marks: measured, all workers on one machine",
        "workers (logarithmic)",
        "",
        [("KB that a worker receives", GREY), ("milliseconds of a step", GREY)],
        WIDE,
        sharey=False,
        key=[Key(name, color) for name, color in colors.items()],
    )
    for axes, marks, value, unit in (
        (left, measured.received, lambda each: each.step.received / 1000, " KB"),
        (right, measured.seconds, lambda each: 1000 * each.seconds, " ms"),
    ):
        scale = 1e-3 if axes is left else 1e3
        drawn = []
        for name, predictions in planned.items():
            values = [value(each) for each in predictions]
            axes.plot([each.workers for each in predictions], values, color=colors[name], linewidth=1.5)
            drawn += values
        for (name, workers), found in marks.items():
            axes.plot([workers], [scale * found], "o", color=colors[name], markersize=5, zorder=3)
            drawn.append(scale * found)
        log_axis(axes.xaxis, 1.7, 1200, "")
        log_axis(axes.yaxis, min(drawn) / 1.5, max(drawn) * 1.5, unit)
    save(figure, path)
