"""Where the time of a step goes."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure

from taugrad.platform.tracking import names

from . import style
from .runs import RunHistory

PHASES = (
    (names.TIME_COMPUTE, "compute", "#D9D9D9", "black"),
    (names.TIME_COMPRESS, "compress", "#5E3C99", "white"),
    (names.TIME_EXCHANGE, "exchange", "#B2ABD2", "black"),
    (names.TIME_DECOMPRESS, "decompress", "#E66101", "white"),
)
"""A phase's metric, its words, its colour and that of letters on it; none of them is a rule's colour."""

_BAR = 0.34  # inches from bar to bar
_SKIPPED = 0.1  # part of a run that is left out at its beginning, while kernels are compiled


def where_time_goes(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """The parts of an iteration, of each run (a bar): medians over its iterations.

    Args:
        runs: With the histories of the metrics in `PHASES`; others are left out.
        page: What it is drawn for.

    Returns:
        The figure.

    Raises:
        ValueError: No run has these histories.
    """
    metrics = [metric for metric, _, _, _ in PHASES]
    drawn = [run for run in runs if all(metric in run.metrics for metric in metrics)]
    if not drawn:
        raise ValueError(f"no run has a history of {metrics[0]}")
    drawn = sorted(drawn, key=lambda run: not run.is_baseline)
    figure, axes = style.new_figure(
        "Where the time of a step goes",
        "medians; exchange runs beside the backward pass: the parts may add up to more than a step takes",
        "milliseconds of an iteration",
        "",
        replace(page, height=2.0 + _BAR * len(drawn), left=1.2 if page.is_narrow else 1.75),
        key=[style.Key(word, ink, color) for _, word, color, ink in PHASES],
    )
    times = [[_median(run, metric) for metric in metrics] for run in drawn]
    longest = max(sum(each) for each in times)
    rows = list(range(len(drawn)))[::-1]
    for row, parts in zip(rows, times, strict=True):
        left = 0.0
        for (_, _, color, ink), part in zip(PHASES, parts, strict=True):
            axes.barh(row, part, left=left, color=color, height=0.72, linewidth=0)
            if part > 0.07 * longest * style.WIDE.width / page.width:
                axes.text(
                    left + part / 2, row, style.decimal(float(f"{part:.2g}")), ha="center", va="center",
                    fontsize=style.SMALL_SIZE, color=ink,
                )  # fmt: skip
            left += part
    axes.set_xlim(0, 1.04 * longest)
    axes.set_ylim(-0.6, len(drawn) - 0.4)
    axes.set_yticks(rows, [_name(run, page) for run in drawn])
    axes.grid(False, axis="y")
    return figure


def _median(run: RunHistory, metric: str) -> float:
    values = run.metrics[metric][1]
    return 1000 * float(np.median(values[int(_SKIPPED * len(values)) :]))


def _name(run: RunHistory, page: style.Page) -> str:
    longest = 14 if page.is_narrow else 22
    return run.name if len(run.name) <= longest else f"{run.name[: longest - 1]}…"
