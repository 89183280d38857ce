"""The figure of a search's dimensions: how each one changes the metric, with every trial as a point."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taugrad.platform.tasks.metric import Metric

from . import judging, style, ticks
from .palette import STOPPED, pale, rule_style
from .runs import RunHistory

Mark = Literal["front", "beaten", "stopped"]
"""The place of a trial: on the front, beaten by it, or stopped early."""

_LOG_SPAN = 10.0  # values that span more stand on a logarithmic axis


@dataclass(frozen=True, eq=False)
class Trial:
    """A run of a search."""

    run: RunHistory
    value: float
    """Of the metric, in the unit that people see, when it ended or was stopped."""
    mark: Mark


def value_by_dimension(
    trials: Sequence[Trial], named: Mapping[str, str], metric: Metric, page: style.Page = style.WIDE
) -> Figure:
    """What trials reached over each dimension of a search, whose value is a number.

    Args:
        trials: With a value.
        named: The dimensions' params, with their names for people.
        metric: What the values are of.
        page: What it is drawn for.

    Returns:
        One panel a dimension; logarithmic where its values span more than a power of ten.

    Raises:
        ValueError: No dimension has two numbers.
    """
    placed = {param: _placed(trials, param) for param in named}
    panels = {param: found for param, found in placed.items() if len({x for _, x in found}) > 1}
    if not panels:
        raise ValueError("no dimension of the search has two numbers")
    figure, drawn = style.new_panels(
        f"How each searched field affects {metric.label}",
        f"strong: on the front of {metric.label} and bytes; pale: behind it; grey crosses: stopped early",
        "value of the dimension",
        judging.axis_label(metric),
        [(named[param], "black") for param in panels],
        style.Page(page.width, page.height, min(page.columns, 2), 2.6, page.left),
        sharex=False,
        key=[
            style.Key(rule, rule_style(rule).color) for rule in sorted({trial.run.rule for trial in trials})
        ],
    )
    for axes, found in zip(drawn, panels.values(), strict=True):
        _draw(axes, found)
    return figure


def _placed(trials: Sequence[Trial], param: str) -> list[tuple[Trial, float]]:
    found = []
    for trial in trials:
        try:
            found.append((trial, float(trial.run.params[param])))
        except (KeyError, ValueError):
            continue
    return found


def _draw(axes: Axes, found: Sequence[tuple[Trial, float]]) -> None:
    low, high = min(x for _, x in found), max(x for _, x in found)
    if low > 0 and high > _LOG_SPAN * low:
        style.log_axis(axes.xaxis, low / 1.6, high * 1.6, "")
    else:
        room = 0.06 * (high - low)
        axes.set_xlim(low - room, high + room)
        whole = all(x == round(x) for _, x in found)
        axes.xaxis.set_major_locator(ticks.linear(6, style.TICK_SIZE, whole=whole))
    for trial, x in found:
        color, marker = rule_style(trial.run.rule)
        if trial.mark == "stopped":
            axes.plot([x], [trial.value], "x", color=STOPPED, markersize=6, markeredgewidth=1.6, zorder=2)
        else:
            strong = trial.mark == "front"
            axes.plot(
                [x], [trial.value], marker, color=color if strong else pale(color),
                markersize=7 if strong else 5, zorder=4 if strong else 3,
            )  # fmt: skip
