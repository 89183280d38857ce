"""Shows a search in the terminal: its trials, its front, and at the end which point to train in full."""

import shlex
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from taugrad.platform.exit_codes import FAILED, OK
from taugrad.platform.places import in_job
from taugrad.platform.spec.allowing import OPTION, code_of
from taugrad.platform.tasks.claims import CONFIDENCE
from taugrad.platform.tasks.metric import Metric
from taugrad.platform.terminal import SILENT_S, say, short
from taugrad.platform.tracking.store import to_copy

from .journal import BASELINE, Trial
from .outputs import SPECS
from .progress import Point, SearchProgress, times_smaller
from .reading import name_search
from .search import Search
from .tables import TextTable

_MOST = 20
"""Rows of the front that are shown while a search runs."""


class LiveSearch:
    """Shows a search: as a growing table in a terminal, elsewhere as a line when a trial starts or ends."""

    def __init__(self, console: Console, progress: SearchProgress) -> None:
        """Shows to `console` what earlier starts have not shown."""
        self._console = console
        self._reported = {number for number, trial in progress.record.trials.items() if trial.ending}
        self._running: set[int] = set()
        self._notices = 0  # how many were shown
        self._latest: SearchProgress | None = None
        self._front: TextTable | None = None
        self._ended, self._said = threading.Event(), time.monotonic()
        self._live = Live(get_renderable=self._shown, console=console, refresh_per_second=4)

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
            if error is None:  # the front is printed in full after this
                self._front = None
            self._live.stop()

    def _say(self, text: str, style: str = "") -> None:
        say(self._console, text, style)
        self._said = time.monotonic()

    def _remind(self) -> None:
        """Adds a line to a log in which nothing has been said for `SILENT_S`."""
        while not self._ended.wait(max(0.1, self._said + SILENT_S - time.monotonic())):
            if time.monotonic() >= self._said + SILENT_S:
                self._say(self._state())

    def _state(self) -> str:
        return "starting Ray ..." if self._latest is None else _state_line(self._latest)

    def _shown(self) -> Group:
        state = Text(self._state(), style="dim")
        return Group(state) if self._front is None else Group(self._front, state)

    def show(self, progress: SearchProgress) -> None:
        """Shows what is new; called after every event."""
        terminal = self._console.is_terminal
        self._latest = progress
        for number, notice in progress.notices[self._notices :]:
            self._say(f"{_name(progress.record.trials[number])}: {notice}", "yellow")
        self._notices = len(progress.notices)
        for number, trial in progress.record.trials.items():
            if trial.ending and number not in self._reported:
                self._reported.add(number)
                if trial.ending == "failed" or not terminal:
                    style = "yellow" if trial.ending == "failed" else ""
                    self._say(ending_line(progress, trial), style)
            elif number in progress.running and number not in self._running and not terminal:
                self._say(f"{_what(trial)}  begins")
        self._running = set(progress.running)
        if terminal:
            self._front = front_table(progress, most=_MOST)
            self._live.refresh()


def _state_line(progress: SearchProgress) -> str:
    """One line: how far the search is, and the trials that run."""
    by, record = progress.search.evaluated_by, progress.record
    endings = [trial.ending for trial in record.ended]
    done = [f"{len(endings)} of {progress.settings.trials} trials have ended"]
    done += [f"{endings.count(kind)} {kind}" for kind in ("pruned", "failed") if kind in endings]
    done += [f"{record.spent_bytes / 1e6:,.4g} MB sent", f"{progress.seconds / 60:.1f} min"]
    running = [
        _name(trial)
        + f" seed {len(trial.trainings) + 1}" * bool(trial.trainings)
        + f" at {by} {trial.evaluation}" * bool(trial.evaluation)
        for trial in list(progress.running.values())
    ]
    return f"{', '.join(done)}; running: {', '.join(running) or 'none yet'}"


def _what(trial: Trial) -> str:
    return f"{_name(trial)}  {shown(trial.params)}".rstrip()


def _name(trial: Trial) -> str:
    return "baseline" if trial.number == BASELINE else f"trial {trial.number}"


def ending_line(progress: SearchProgress, trial: Trial) -> str:
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
    point = Point.of(trial, metric)
    reached = f"{metric.label} {metric.shown(point.mean)}"
    if point.interval is not None:
        reached += f" ({interval(point, metric)})"
    on_front = any(other.number == trial.number for other in progress.front)
    return f"{what}  {reached}, {point.wire_bytes / 1e6:.4g} MB{', on the front' * on_front}"


def interval(point: Point, metric: Metric) -> str:
    """The 95% interval of a point's mean, `95.10 to 96.71`; empty without one."""
    ends = [f"{metric.scale * end:.{metric.digits}f}" for end in point.interval or ()]
    return " to ".join(ends)


def front_table(progress: SearchProgress, most: int | None = None) -> TextTable:
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
    return TextTable((*headings, "than 16 bits", "trial", "at"), rows, text=(7,))


def _cells(progress: SearchProgress, point: Point) -> list[str]:
    metric, baseline = progress.metric, progress.baseline
    smaller = 0.0 if baseline is None else times_smaller(point, baseline)
    times = [f"{ratio:,.4g}x" if ratio else "" for ratio in (smaller, smaller / 2)]
    return [metric.shown(point.mean), interval(point, metric), f"{point.wire_bytes / 1e6:,.4g}", *times]


def what_intervals_hold(progress: SearchProgress) -> str:
    """The line about what the intervals in the front's table include."""
    several = any(len(point.run_ids) > 1 for point in progress.front)
    over = ["seeds (Student's t)"] if several else []
    if progress.metric.is_share and any(point.examples for point in progress.front):
        over.append("test examples (Wilson)")
    if not over:
        return "No interval: seeds were not repeated"
    missing = "" if several else "; what another seed would train is not in them"
    return f"Intervals: {' and '.join(over)}{missing}"


def shown(params: Mapping[str, Any]) -> str:
    """A point as text: `tau 0.00123, training.batch_size 32`."""
    named = {name.partition(" [")[0].removeprefix("compressor."): value for name, value in params.items()}
    return ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in named.items())


def print_result(console: Console, progress: SearchProgress, problem: str, tracking_uri: str) -> int:
    """Prints the result of a search, and returns the command's exit code.

    It is 1 if a problem prevented trials, if no trial ran in full, or if trials are left without a reason.
    """
    folder, search = progress.journal.path.parent, progress.search
    if problem:
        say(console, f"search {search.name}: {problem}", style="red")
        return FAILED
    counted = f"{len(progress.record.ended)} of {progress.settings.trials} trials"
    used_up = progress.exhausted()
    if used_up and progress.left:
        say(console, f"the budget {used_up} is used up after {counted}")
    if not progress.points:
        say(console, f"no trial ran in full; see {short(folder)}/trials.csv", style="red")
        return FAILED
    console.print(front_table(progress))
    say(console, what_intervals_hold(progress))
    say(console, verdict(progress))
    say(console, f"Front, trials, figure and a spec for each point: {short(folder)}")
    say(console, proposal(progress, tracking_uri))
    if progress.incomplete:
        say(
            console,
            f"search {search.name}: ended after {counted}; run the same command again to continue",
            style="red",
        )
        return FAILED
    return OK


def verdict(progress: SearchProgress) -> str:
    """The number of points on the front, or the best point."""
    settings, objective, baseline = progress.settings, progress.objective, progress.baseline
    best = objective.best(progress.points)
    if settings.objective == "front":
        return f"on the front: {len(progress.front)} of {len(progress.points)} points that ran in full"
    if best is None:
        metric = progress.metric
        allowed = metric.amount(objective.allowed(baseline.value) if baseline else 0.0)
        return (
            f"no point keeps within {allowed} of the baseline's {metric.label}; "
            "widen the ranges or search.tolerance"
        )
    return f"point {progress.place(best)} {objective.proposed(progress.points)[1]}"


def proposal(progress: SearchProgress, tracking_uri: str) -> str:
    """The command that trains the point that the objective prefers, with the reason."""
    point, why = progress.objective.proposed(progress.points)
    place = progress.place(point)
    search, spec = progress.search, str(progress.journal.path.parent / SPECS / f"{place}.yaml")
    if search.settings.evaluate:  # --pick would train by taugrad's own trainer
        return f"Point {place}, which {why}, is {spec}: train it by {search.settings.evaluate}"
    command = ["taugrad", "search", search.source, *_named(search), "--pick", str(place)]
    if in_job():  # its folder is not where the command will be given
        command = ["taugrad", "train", spec]
    command += [OPTION] * bool(code_of(search.spec(point.params)))
    return f"Train point {place}, which {why}: {to_copy(shlex.join(command), tracking_uri)}"


def _named(search: Search) -> list[str]:
    """The arguments that identify the search beside its file."""
    name, experiment = search.name, search.spec(search.middle).experiment
    usual_name, usual_experiment, _ = name_search(Path(search.source), [])
    arguments = [] if name == usual_name else ["--search.name", name]
    return arguments if experiment == usual_experiment else [*arguments, "--experiment", experiment]
