"""Where the time of a step goes: as bars of its parts, and as a Gantt chart of a few steps of all workers."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taugrad.compressors.spans import Span
from taugrad.platform.tracking import names
from taugrad.platform.tracking.timeline import Timeline

from . import style
from .labelling import shortened
from .runs import RunHistory

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

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
_HEIGHT, _OVERLAP = 0.52, 0.2  # of a bar, and of the one below it; from bar to bar is 1
_SKIPPED = 0.1  # part of a run that is left out at its beginning, while kernels are compiled

_OF_PHASES = {word: (color, ink) for _, word, color, ink in PHASES}
KINDS = {
    "step": ("#F2F2F2", "black"),
    "data": _OF_PHASES["data"],
    "forward": ("#D9D9D9", "black"),
    "backward": ("#B3B3B3", "black"),
    "optimizer": ("#7F7F7F", "white"),
    "compress": _OF_PHASES["compress"],
    "wait": _OF_PHASES["wait"],
    "decode": _OF_PHASES["decompress"],
    "exchange": (EXCHANGE_COLOR, "black"),
}
"""By a span's name, its colour and that of letters on it; computing is grey, the rest as in the bars."""
_WORDS = {"step": "other"}
"""What a kind is called in the key, if not by its name: of a step what lies in no other span is seen."""

MOST_WORKERS = 16
"""Workers of a run that are drawn."""
_ROW, _RUN = 0.42, 0.36  # inches: of a worker, and of the heading over a run's
_COMPUTE, _WIRE = 0.5, 0.26  # heights of a worker's lanes; from worker to worker is 1
_OVER = 0.07  # by which the line at a step's beginning is longer, above and below
_HEADING = _RUN / _ROW  # in workers


@dataclass(frozen=True)
class RunTimeline:
    """A run that has a timeline."""

    run: RunHistory
    timeline: Timeline


def read_timelines(client: "MlflowClient", runs: Sequence[RunHistory]) -> list[RunTimeline]:
    """The timelines of runs that have one, and whose store returns it."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    timelines = []
    for run in runs:
        with suppress(Exception):  # of many types; a timeline is a comfort, and most stores have artifacts
            artifacts = client.list_artifacts(run.run_id)
            if any(artifact.path == names.ARTIFACT_TIMELINE for artifact in artifacts):
                with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
                    path = client.download_artifacts(run.run_id, names.ARTIFACT_TIMELINE, folder)
                    text = Path(path).read_text(encoding="utf-8")
                timelines.append(RunTimeline(run, Timeline.from_json(text)))
    return timelines


def steps_of_workers(timelines: Sequence[RunTimeline], page: style.Page = style.WIDE) -> Figure:
    """Gantt chart of the recorded steps of runs, on one scale of time.

    A row for each worker: its upper lane is computing and waiting, the lower one messages under way. Raises
    ValueError if there are no runs.
    """
    if not timelines:
        raise ValueError("no run has a timeline")
    shown = [recorded.timeline.workers[:MOST_WORKERS] for recorded in timelines]
    kinds = {span.name for workers in shown for spans in workers for span in spans}
    height = 1.75 + _ROW * sum(map(len, shown)) + _RUN * len(shown)
    figure, axes = style.new_figure(
        "A few steps of all workers",
        "upper lane of a worker: what it computes and waits for; lower lane: messages under way",
        "milliseconds since the first recorded step began",
        "",
        replace(page, height=height, left=0.95),
        key=[
            style.Key(_WORDS.get(name, name), ink, color)
            for name, (color, ink) in KINDS.items()
            if name in kinds
        ],
    )
    longest = max(span.ended for workers in shown for spans in workers for span in spans)
    at, ticks, labels = 0.0, [], []
    for recorded, workers in zip(timelines, shown, strict=True):
        _head(axes, recorded, at)
        for row, spans in enumerate(workers):
            top = at + _HEADING + row
            _draw(axes, spans, top)
            ticks.append(top + (_COMPUTE + _WIRE) / 2)
            labels.append(f"worker {row}")
        at += _HEADING + len(workers)
    axes.set_xlim(0, 1000 * longest * 1.01)
    axes.set_ylim(at, 0)
    axes.set_yticks(ticks, labels)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    return figure


def _head(axes: Axes, recorded: RunTimeline, top: float) -> None:
    """The run's name, and which steps are shown."""
    left_out = len(recorded.timeline.workers) - MOST_WORKERS
    more = f", {left_out} more workers" if left_out > 0 else ""
    name, steps = shortened(recorded.run.name, 40), [number for number, _ in recorded.timeline.steps]
    axes.text(
        0, top + 0.62 * _HEADING, f"{name}: steps {steps[0]} to {steps[-1]}{more}",
        fontsize=style.SMALL_SIZE, fontweight="bold", va="center",
    )  # fmt: skip


def _draw(axes: Axes, spans: Sequence[Span], top: float) -> None:
    # What lies within another one, such as compressing in the backward pass, is drawn over it.
    known = sorted((span for span in spans if span.name in KINDS), key=lambda span: span.began - span.ended)
    for computes, lane in ((True, (top, _COMPUTE)), (False, (top + _COMPUTE, _WIRE))):
        drawn = [span for span in known if (span.lane == "compute") == computes]
        bars = [(1000 * span.began, 1000 * (span.ended - span.began)) for span in drawn]
        if bars:
            axes.broken_barh(bars, lane, facecolors=[KINDS[span.name][0] for span in drawn], linewidth=0)
    begins = [1000 * span.began for span in spans if span.name == "step"]
    axes.vlines(begins, top - _OVER, top + _COMPUTE + _WIRE + _OVER, color="black", linewidth=0.8)


def where_time_goes(runs: Sequence[RunHistory], page: style.Page = style.WIDE) -> Figure:
    """The mean time of each phase of an iteration, a bar for each run with the histories of `METRICS`.

    Medians would not add up, and would leave out rare phases, such as an exchange every 100 steps. Raises
    ValueError if no run has these histories.
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
    longest = max(sum(parts) for parts in times)
    for row, (run, parts) in enumerate(zip(drawn, times, strict=True)):
        left = waits_at = 0.0
        for (metric, _, color, ink), part in zip(PHASES, parts, strict=True):
            axes.barh(row, part, left=left, color=color, height=_HEIGHT, linewidth=0)
            if part > 0.07 * longest * style.WIDE.width / page.width:
                axes.text(
                    left + part / 2, row, style.decimal(part, 2), ha="center", va="center",
                    fontsize=style.SMALL_SIZE, color=ink,
                )  # fmt: skip
            if metric == names.TIME_WAIT:
                waits_at = left
            left += part
        # What was under way before the worker had to wait for it ends where the waiting begins.
        beside = _mean(run, names.TIME_OVERLAP)
        axes.barh(
            row + (_HEIGHT + _OVERLAP) / 2, beside, left=max(0.0, waits_at - beside), color=EXCHANGE_COLOR,
            height=_OVERLAP, linewidth=0,
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
