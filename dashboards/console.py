"""The terminal output of `taugrad train`: live runs; then a table, figures and the next commands."""

import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.text import Text

from taugrad.platform.launching.driver.launch import Watch
from taugrad.platform.launching.run_status import StatusUpdate
from taugrad.platform.places import RUNS, home, output_folder
from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.terminal import SILENT_S, SOON_S, open_console, say, short
from taugrad.platform.tracking import names
from taugrad.platform.tracking.masking import masked
from taugrad.platform.tracking.store import to_copy
from taugrad.platform.training.reporting import TRAINING, RunProgress

from .metric_labels import common
from .palette import RUN_COLOR, rule_style
from .runs import RunHistory, read_run
from .table import in_path, render, to_csv, to_markdown

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_FIGURES = "figures"
_HISTORIES = (names.COMM_FRACTION, names.COMM_WIRE_BYTES, names.TRAIN_LOSS)
_MOST_INTERACTIVE = 8  # runs that get a page of interactive charts each, of 5 MB; of more only the first does


class ConsoleDisplay:
    """Shows a command's runs on a terminal, or in a log; a `launching.driver.train.Display`."""

    def __init__(self) -> None:
        """Shows on standard output."""
        self.console = open_console()
        self._histories: list[RunHistory] = []

    def tags(self, spec: RunSpec) -> Mapping[str, str]:
        """See `Display.tags`: the colour of the run's rule."""
        return {RUN_COLOR: rule_style(spec.compressor.kind).color}

    def live(self, title: str, width: int) -> "LiveRun":
        """See `Display.live`."""
        return LiveRun(self.console, title, width)

    def add(self, client: "MlflowClient", spec: RunSpec, run_id: str, metrics: Mapping[str, float]) -> None:
        """See `Display.add`; reads the run from the store now, as long as it answers."""
        self._histories.append(_history(client, spec, run_id, metrics))

    def compare(self, client: "MlflowClient", experiments: Sequence[str]) -> None:
        """See `Display.compare`: prints a table and paths; files are named after the first experiment."""
        console, histories = self.console, self._histories
        if not histories:
            return
        console.print()
        console.print(render(histories))
        folder = output_folder(home() / RUNS) / _FIGURES / in_path(experiments[0])
        paths, charts, also = list[Path](), list[Path](), ""
        try:
            shutil.rmtree(folder, ignore_errors=True)  # figures of an earlier command
            paths = _draw([run for run in histories if run.metrics], folder) + _write(histories, folder)
            charts = _interactive(histories, experiments[0], folder)
        except OSError as error:
            say(console, f"Not all figures and tables could be written: {error}", "yellow")
        with suppress(Exception):  # the files are on disk; an unavailable store must not end the command
            for i, history in enumerate(histories):
                interactive = charts if i == 0 or len(histories) <= _MOST_INTERACTIVE else []
                for path in [*paths, *interactive]:
                    client.log_artifact(history.run_id, str(path), _FIGURES)
                if i < _MOST_INTERACTIVE:
                    _draw_steps(client, history)
            also = " (and in every run's artifacts)"
        say(console, f"Figures and tables: {short(folder)}{also}")
        uri = client.tracking_uri
        say(console, f"See the runs: {_mlflow_ui(masked(uri), ' and '.join(experiments))}")
        for experiment in experiments:
            quoted = shlex.quote(experiment)
            output = "report" if len(experiments) == 1 else f"report-{in_path(experiment)}"
            say(console, f"Compare them: {to_copy(f'taugrad dashboard {quoted} --serve', uri)}")
            say(console, f"Sum them up on one page: {to_copy(f'taugrad report {quoted} -o {output}', uri)}")


def _history(client: "MlflowClient", spec: RunSpec, run_id: str, metrics: Mapping[str, float]) -> RunHistory:
    """The run from the store; if it does not answer, from the metrics that the workers reported."""
    try:
        return read_run(client, run_id, _HISTORIES)
    except Exception:
        rule, tau = spec.compressor.kind, getattr(spec.compressor, "tau", None)
        tau = tau if isinstance(tau, float) else None  # a policy is no number
        metric = counting_metric(spec)
        return RunHistory(run_id, spec.title, rule, tau, spec.flat(), {}, metrics, metric)


def _draw(histories: Sequence[RunHistory], folder: Path) -> list[Path]:
    if not histories:
        return []
    from .figures import fraction_per_iteration, save, value_against_mb  # noqa: PLC0415 - matplotlib
    from .style import as_written  # noqa: PLC0415

    folder.mkdir(parents=True, exist_ok=True)
    drawings = {"fraction_per_iteration": partial(fraction_per_iteration, histories)}
    for metric in common(run.metric for run in histories):
        judged = [run for run in histories if run.metric == metric]
        drawings[f"{in_path(metric.name)}_against_mb"] = partial(value_against_mb, judged)
    paths = []
    for name, draw in drawings.items():
        with suppress(ValueError), as_written():  # the runs may not have what this figure shows
            save(draw(), folder / f"{name}.png")
            paths.append(folder / f"{name}.png")
    return paths


def _draw_steps(client: "MlflowClient", history: RunHistory) -> None:
    """Logs the picture of a run's timeline, if it has one."""
    from .figures import save  # noqa: PLC0415 - matplotlib
    from .style import as_written  # noqa: PLC0415
    from .timelines import read_timelines, steps_of_workers  # noqa: PLC0415

    timelines = read_timelines(client, [history])
    if timelines:
        with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
            path = Path(folder) / "timeline.png"
            with as_written():
                save(steps_of_workers(timelines), path)
            client.log_artifact(history.run_id, str(path), _FIGURES)


def _interactive(histories: Sequence[RunHistory], experiment: str, folder: Path) -> list[Path]:
    """Writes interactive charts of the runs, which MLflow shows among a run's artifacts."""
    from .interactive import charts, page  # noqa: PLC0415 - plotly

    drawn = charts([run for run in histories if run.metrics])
    if not drawn:
        return []
    path = folder / "interactive.html"
    path.write_text(page(f"{experiment}: runs compared", drawn), encoding="utf-8")
    return [path]


def _write(histories: Sequence[RunHistory], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    texts = {folder / "table.csv": to_csv(histories), folder / "table.md": to_markdown(histories)}
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return list(texts)


def _mlflow_ui(uri: str, experiment: str) -> str:
    if uri.startswith("http"):
        return f"{uri}, experiment {experiment}"
    beside = Path(sys.executable).with_name("mlflow")
    command = "mlflow" if shutil.which("mlflow") or not beside.exists() else shlex.quote(short(beside))
    here = f"sqlite:///{Path.cwd()}/"
    if uri.startswith(here):
        uri = f"sqlite:///{uri.removeprefix(here)}"
    started = f"{command} ui --backend-store-uri {shlex.quote(uri)}"
    return f"{started}\n  then open http://127.0.0.1:5000, experiment {experiment}"


class LiveRun:
    """Shows one run: in a terminal as a line that is updated, in a log as new lines.

    A context manager that returns the function that `launch` calls with update.
    """

    def __init__(
        self, console: Console, title: str, width: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Shows to `console`; titles are padded to `width`, so that several runs' lines align."""
        self._console, self._clock = console, clock
        self._title = title.ljust(width)
        self._trains = False
        self._stage, self._logged = "starting", ""
        """The stage that the run is in, and the one that was logged last."""
        self._latest: RunProgress | None = None
        self._printed = self._entered = clock()
        self._live = Live(self._waiting("starting"), console=console, refresh_per_second=4)

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._live.start()
        return self._watch

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            if self._latest is not None:  # in place of how the run was ended
                self._live.update(self._line(self._latest))
            self._live.stop()

    def _watch(self, update: StatusUpdate) -> None:
        """Shows news of the run; may be called by another thread."""
        for notice in update.notices:
            self._console.print(
                f"{self._title.strip()}: {notice}", style="yellow", markup=False, soft_wrap=True
            )
        for stage in update.stages:
            self._stage, self._trains, self._entered = stage, stage == TRAINING, self._clock()
        self._latest = update.progress or self._latest
        if self._console.is_terminal:
            if update.progress is not None and self._trains:
                self._live.update(self._line(update.progress))
            elif update.stages:
                self._live.update(self._waiting(update.stages[-1]))
        else:
            for progress in update.evaluations:
                self._print(self._line(progress))
            now = self._clock()
            unlogged = not self._trains and self._stage != self._logged
            if now - self._printed >= SILENT_S or (unlogged and now - self._entered >= SOON_S):
                latest = self._latest if self._trains else None
                self._print(self._waiting(self._stage) if latest is None else self._line(latest))
                self._logged = self._stage

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)
        self._printed = self._clock()

    def _waiting(self, what: str) -> Text:
        return Text.assemble((self._title, "bold"), f"  {what} {chr(0x2026)}")

    def _line(self, p: RunProgress) -> Text:
        value = "--" if p.value is None else p.metric.shown(p.value)
        loss_of, agreed = (" (workers' own models)", " (agreed model)") if p.own_models else ("", "")
        left = (
            0 if self._console.is_terminal else p.iterations - p.iteration
        )  # a terminal's line is long enough
        pace = f" at {p.seconds_left / left:.3g} s each" if left else ""
        digits = len(str(p.iterations))
        return Text.assemble(
            (self._title, "bold"),
            f"  epoch {p.epoch:{len(str(p.epochs))}}/{p.epochs}",
            f"  iteration {p.iteration:{digits}}/{p.iterations}{pace}",
            f"  loss {p.loss:.4f}{loss_of}",
            f"  {p.metric.label} {value:>7}{agreed}",
            f"  fraction {100 * p.fraction:6.2f}%",
            f"  {p.wire_bytes / 1e6:8.2f} MB sent",
            f"  {_clock(p.seconds_left)} left",
        )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
