"""Where the time of a step goes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from taugrad.platform.tracking import names

from . import style
from .runs import RunHistory

EXCHANGE_COLOR = "#80CDC1"
PHASES = (
    (names.TIME_DATA, "data", "#F2E3B3", "black"),
    (names.TIME_COMPUTE, "compute", "#D9D9D9", "black"),
    (names.TIME_COMPRESS, "compress", "#5E3C99", "white"),
    (names.TIME_WAIT, "wait", "#35978F", "white"),
    (names.TIME_DECOMPRESS, "decompress", "#E66101", "white"),
)
"""A phase's metric, its words, its colour and that of letters on it; none of them is a rule's colour."""
METRICS = (*(metric for metric, *_ in PHASES), names.TIME_OVERLAP)
"""The histories that a run needs."""

_BAR = 0.34  # inches from bar to bar
_HEIGHT, _BESIDE = 0.52, 0.2  # of a bar, and of what is drawn below it; from bar to bar is 1
_SKIPPED = 0.1  # part of a run that is left out at its beginning, while kernels are compiled


def where_time_goes(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """The parts of an iteration, of each run (a bar): means over its iterations.

    Medians would not add up, and leave out what happens now and then, such as an exchange every 100 steps.

    Args:
        runs: With the histories of `METRICS`; others are left out.
        page: What it is drawn for.

    Returns:
        The figure.

    Raises:
        ValueError: No run has these histories.
    """
    drawn = [run for run in runs if all(metric in run.metrics for metric in METRICS)]
    if not drawn:
        raise ValueError(f"no run has a history of {names.TIME_WAIT}")
    drawn = sorted(drawn, key=lambda run: not run.is_baseline)
    figure, axes = style.new_figure(
        "Where the time of a step goes",
        "means; the parts add up to a step; below: messages that overlap with other work",
        "milliseconds of an iteration",
        "",
        replace(page, height=2.0 + _BAR * len(drawn), left=1.2 if page.is_narrow else 1.75),
        key=[
            *(style.Key(word, ink, color) for _, word, color, ink in PHASES),
            style.Key("exchange beside", "black", EXCHANGE_COLOR),
        ],
    )
    times = [[_mean(run, metric) for metric, *_ in PHASES] for run in drawn]
    longest = max(sum(each) for each in times)
    for row, (run, parts) in enumerate(zip(drawn, times, strict=True)):
        left = waits_at = 0.0
        for (metric, _, color, ink), part in zip(PHASES, parts, strict=True):
            axes.barh(row, part, left=left, color=color, height=_HEIGHT, linewidth=0)
            if part > 0.07 * longest * style.WIDE.width / page.width:
                axes.text(
                    left + part / 2, row, style.decimal(float(f"{part:.2g}")), ha="center", va="center",
                    fontsize=style.SMALL_SIZE, color=ink,
                )  # fmt: skip
            if metric == names.TIME_WAIT:
                waits_at = left
            left += part
        # What was under way before the worker had to wait for it ends where the waiting begins.
        beside = _mean(run, names.TIME_OVERLAP)
        axes.barh(
            row + (_HEIGHT + _BESIDE) / 2, beside, left=max(0.0, waits_at - beside), color=EXCHANGE_COLOR,
            height=_BESIDE, linewidth=0,
        )  # fmt: skip
    axes.set_xlim(0, 1.04 * longest)
    axes.set_ylim(len(drawn) - 0.4, -0.6)
    axes.set_yticks(range(len(drawn)), [_name(run, page) for run in drawn])
    axes.grid(False, axis="y")
    return figure


def _mean(run: RunHistory, metric: str) -> float:
    values = run.metrics[metric][1]
    return 1000 * float(np.mean(values[int(_SKIPPED * len(values)) :]))


def _name(run: RunHistory, page: style.Page) -> str:
    longest = 14 if page.is_narrow else 22
    return run.name if len(run.name) <= longest else f"{run.name[: longest - 1]}…"
