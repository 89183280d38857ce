"""A few steps of all workers, as a Gantt chart: what each computed, and what was on its way meanwhile."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from taugrad.compressors.spans import Span
from taugrad.platform.tracking import names
from taugrad.platform.tracking.timeline import Timeline

from . import style
from .runs import RunHistory
from .step_time import EXCHANGE_COLOR, PHASES

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

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
    """The timelines of those of the runs that have one.

    Args:
        client: The tracking store; where it does not hand one out, the run counts as without.
        runs: The runs.
    """
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    found = []
    for run in runs:
        with suppress(Exception):  # of many types; a timeline is a comfort, and most stores have artifacts
            if any(each.path == names.ARTIFACT_TIMELINE for each in client.list_artifacts(run.run_id)):
                with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
                    path = client.download_artifacts(run.run_id, names.ARTIFACT_TIMELINE, folder)
                    text = Path(path).read_text(encoding="utf-8")
                found.append(RunTimeline(run, Timeline.from_json(text)))
    return found


def steps_of_workers(found: Sequence[RunTimeline], page: style.Page = style.WIDE) -> Figure:
    """What the workers of each run did in the recorded steps, on one scale of time.

    Args:
        found: The runs.
        page: What it is drawn for.

    Returns:
        A row for each worker: its upper lane is computing and waiting, the lower one what is under way.

    Raises:
        ValueError: There are none.
    """
    if not found:
        raise ValueError("no run has a timeline")
    shown = [each.timeline.workers[:MOST_WORKERS] for each in found]
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
    for each, workers in zip(found, shown, strict=True):
        _head(axes, each, at)
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


def _head(axes: Axes, each: RunTimeline, top: float) -> None:
    """The run's name, and which steps are shown."""
    left_out = len(each.timeline.workers) - MOST_WORKERS
    more = f", {left_out} more workers" if left_out > 0 else ""
    name = each.run.name if len(each.run.name) <= 40 else f"{each.run.name[:39]}…"
    steps = [number for number, _ in each.timeline.steps]
    axes.text(
        0, top + 0.62 * _HEADING, f"{name}: steps {steps[0]} to {steps[-1]}{more}",
        fontsize=style.SMALL_SIZE, fontweight="bold", va="center",
    )  # fmt: skip


def _draw(axes: Axes, spans: Sequence[Span], top: float) -> None:
    # What lies within another one, such as compressing in the backward pass, is drawn over it.
    known = sorted((span for span in spans if span.name in KINDS), key=lambda each: each.began - each.ended)
    for computes, lane in ((True, (top, _COMPUTE)), (False, (top + _COMPUTE, _WIRE))):
        drawn = [span for span in known if (span.lane == "compute") == computes]
        bars = [(1000 * span.began, 1000 * (span.ended - span.began)) for span in drawn]
        if bars:
            axes.broken_barh(bars, lane, facecolors=[KINDS[span.name][0] for span in drawn], linewidth=0)
    begins = [1000 * span.began for span in spans if span.name == "step"]
    axes.vlines(begins, top - _OVER, top + _COMPUTE + _WIRE + _OVER, color="black", linewidth=0.8)
