"""Shows a search in the terminal: its trials, and its front."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taugrad.platform.tasks.claims import CONFIDENCE
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.terminal import SILENT_S, say

from .journal import BASELINE, Trial
from .progress import Point, Progress, times_smaller
from .tables import printed

_MOST = 20
"""Rows of the front that are shown while a search runs."""


class LiveSearch:
    """Shows a search: as a growing table in a terminal, elsewhere as a line when a trial starts or ends."""

    def __init__(self, console: Console) -> None:
        """Shows to `console`."""
        self._console = console
        self._live = Live(Text("starting Ray ..."), console=console, refresh_per_second=4)
        self._told: set[int] = set()
        self._running: set[int] = set()
        self._latest: Progress | None = None
        self._ended, self._said = threading.Event(), time.monotonic()

    def __enter__(self) -> "LiveSearch":
        if self._console.is_terminal:
            self._live.start()
        else:
            self._say("starting Ray ...")
            threading.Thread(target=self._remind, name="taugrad-search-log", daemon=True).start()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        if self._console.is_terminal:
            if error is None and self._latest is not None:  # the front is printed in full after this
                self._live.update(_Running(self._latest))
            self._live.stop()

    def take_as_told(self, progress: Progress) -> None:
        """Skips what earlier starts have already shown."""
        self._told |= {number for number, trial in progress.record.trials.items() if trial.ending}

    def _say(self, text: str, style: str = "") -> None:
        say(self._console, text, style)
        self._said = time.monotonic()

    def _remind(self) -> None:
        """Adds a line to a log in which nothing has been said for `SILENT_S`."""
        while not self._ended.wait(max(0.1, self._said + SILENT_S - time.monotonic())):
            if time.monotonic() >= self._said + SILENT_S:
                self._say("starting Ray ..." if self._latest is None else _running_line(self._latest))

    def show(self, progress: Progress) -> None:
        """Shows what is new; called after every event."""
        terminal = self._console.is_terminal
        self._latest = progress
        for number, trial in progress.record.trials.items():
            if trial.ending and number not in self._told:
                self._told.add(number)
                if trial.ending == "failed" or not terminal:
                    style = "yellow" if trial.ending == "failed" else ""
                    self._say(ending_line(progress, trial), style)
            elif number in progress.running and number not in self._running and not terminal:
                self._say(f"{_what(trial)}  begins")
        self._running = set(progress.running)
        if terminal:
            self._live.update(Group(front_table(progress, most=_MOST), _Running(progress)))


def _running_line(progress: Progress) -> str:
    """One line about the trials that run."""
    by = progress.search.evaluated_by
    running = [
        _name(trial) + (f" at {by} {trial.evaluation}" if trial.evaluation else "")
        for trial in list(progress.running.values())
    ]
    done = f"{len(progress.record.ended)} of {progress.settings.trials} trials have ended"
    return f"{done}; running: {', '.join(running) or 'none yet'}"


def _what(trial: Trial) -> str:
    return f"{_name(trial)}  {shown(trial.params)}".rstrip()


def _name(trial: Trial) -> str:
    return "baseline" if trial.number == BASELINE else f"trial {trial.number}"


def ending_line(progress: Progress, trial: Trial) -> str:
    """One line about a trial that has ended."""
    what, metric = _what(trial), progress.metric
    if trial.ending == "failed":
        return f"{what}  failed: {trial.reason}"
    if trial.ending == "pruned":
        last = trial.course[trial.evaluation]
        return (
            f"{what}  stopped after {progress.search.evaluated_by} {trial.evaluation}: "
            f"{metric.label} {metric.shown(last.value)}, {last.wire_bytes / 1e6:.4g} MB"
        )
    point = progress.point(trial)
    reached = f"{metric.label} {metric.shown(point.mean)}"
    if point.interval is not None:
        reached += f" ({interval(point, metric)})"
    on_front = any(other.number == trial.number for other in progress.front)
    return f"{what}  {reached}, {point.wire_bytes / 1e6:.4g} MB{', on the front' * on_front}"


def interval(point: Point, metric: Metric) -> str:
    """The 95% interval of a point's mean, `95.10 to 96.71`; empty without one."""
    ends = [f"{metric.scale * end:.{metric.digits}f}" for end in point.interval or ()]
    return " to ".join(ends)


def front_table(progress: Progress, most: int | None = None) -> Table:
    """The front, from few bytes to many, in at most `most` rows, and the baseline."""
    headings = ("point", progress.metric.label, f"{100 * CONFIDENCE:g}% interval", "wire MB", "times smaller")
    points, baseline = progress.front, progress.baseline
    best = progress.objective.best(progress.points)
    rows = []
    for place, point in enumerate(points[:most], start=1):
        mark = "* " * (best is not None and point.number == best.number)
        rows.append([f"{mark}{place}", *_cells(progress, point), str(point.number), shown(point.params)])
    if most is not None and len(points) > most:
        rows.append(["...", *[""] * 6, f"and {len(points) - most} more"])
    if baseline is not None:
        rows.append(["", *_cells(progress, baseline), "", "without compression"])
    return printed((*headings, "than 16 bits", "trial", "at"), rows, text=(7,))


def _cells(progress: Progress, point: Point) -> list[str]:
    metric, baseline = progress.metric, progress.baseline
    smaller = 0.0 if baseline is None else times_smaller(point, baseline)
    times = [f"{ratio:,.4g}x" if ratio else "" for ratio in (smaller, smaller / 2)]
    return [metric.shown(point.mean), interval(point, metric), f"{point.wire_bytes / 1e6:,.4g}", *times]


def what_intervals_hold(progress: Progress) -> str:
    """The line about what the intervals in the front's table include."""
    several = any(len(point.run_ids) > 1 for point in progress.front)
    over = ["seeds (Student's t)"] if several else []
    if progress.metric.is_share and any(point.examples for point in progress.front):
        over.append("test examples (Wilson)")
    if not over:
        return "No interval: seeds were not repeated"
    missing = "" if several else "; what another seed would train is not in them"
    return f"Intervals: {' and '.join(over)}{missing}"


class _Running:
    """The state of the search as a line, whose clock is updated between events."""

    def __init__(self, progress: Progress) -> None:
        record, self._progress = progress.record, progress
        endings = [trial.ending for trial in record.ended]
        self._counts = [f"{len(endings)} of {progress.settings.trials} trials"]
        self._counts += [f"{endings.count(kind)} {kind}" for kind in ("pruned", "failed") if kind in endings]
        self._counts.append(f"{record.spent_bytes / 1e6:,.4g} MB sent")
        self._trials = []
        for trial in sorted(progress.running.values(), key=lambda trial: trial.number):
            seed = f" seed {len(trial.trainings) + 1}" if trial.trainings else f" {100 * trial.share:.0f}%"
            self._trials.append(f"{_name(trial)}{seed}")

    def __rich__(self) -> Text:
        minutes = f"{self._progress.seconds / 60:.1f} min"
        return Text("  ".join((*self._counts, minutes, *self._trials)), style="dim")


def shown(params: Mapping[str, Any]) -> str:
    """A point as text: `tau 0.00123, training.batch_size 32`."""
    named = {name.partition(" [")[0].removeprefix("compressor."): value for name, value in params.items()}
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in named.items())
