"""The terminal output of `taugrad train`: live runs; then a table, figures and what to do next."""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from taugrad.platform.spec import RunSpec
from taugrad.platform.tasks.counting import counting_metric
from taugrad.platform.terminal import open_console, say, short
from taugrad.platform.tracking import names
from taugrad.platform.tracking.masking import masked
from taugrad.platform.tracking.store import home, output_folder, to_copy

from .escaping import in_path
from .judging import common
from .live import LiveRun
from .palette import color_tag
from .runs import RunHistory, read_run
from .table import render, to_csv, to_markdown

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_FIGURES = "figures"
_HISTORIES = (names.COMM_FRACTION, names.COMM_WIRE_BYTES, names.TRAIN_LOSS)
_MOST_INTERACTIVE = 8  # runs that get a page of interactive charts each, of 5 MB; of more only the first does


class ConsoleDisplay:
    """Shows a command's runs on a terminal, or in a log; implements `launching.command.Display`."""

    def __init__(self) -> None:
        """Shows on standard output."""
        self.console = open_console()
        self._histories: list[RunHistory] = []

    def tags(self, spec: RunSpec) -> Mapping[str, str]:
        """See `Display.tags`: the colour of the run's rule."""
        return color_tag(spec.compressor.kind)

    def live(self, title: str, width: int) -> LiveRun:
        """See `Display.live`."""
        return LiveRun(self.console, title, width)

    def add(self, client: "MlflowClient", spec: RunSpec, run_id: str, metrics: Mapping[str, float]) -> None:
        """See `Display.add`; what the store has of the run is read now, as long as it answers."""
        self._histories.append(_history(client, spec, run_id, metrics))

    def compare(self, client: "MlflowClient", experiments: Sequence[str]) -> None:
        """See `Display.compare`: a table, figures, where all lies; files go by the first experiment."""
        console, histories = self.console, self._histories
        if not histories:
            return
        console.print()
        console.print(render(histories))
        folder = output_folder(home() / names.RUNS) / _FIGURES / experiments[0]
        paths = _draw([run for run in histories if run.metrics], folder) + _write(histories, folder)
        charts = _interactive(histories, experiments[0], folder)
        kept_too = ""
        with suppress(Exception):  # the files are on disk; a store that is away must not end the command
            for i, history in enumerate(histories):
                interactive = charts if i == 0 or len(histories) <= _MOST_INTERACTIVE else []
                for path in [*paths, *interactive]:
                    client.log_artifact(history.run_id, str(path), _FIGURES)
                if i < _MOST_INTERACTIVE:
                    _draw_steps(client, history)
            kept_too = " (and in every run's artifacts)"
        say(console, f"Figures and tables: {short(folder)}{kept_too}")
        uri = client.tracking_uri
        say(console, f"See the runs: {_mlflow_ui(masked(uri), ' and '.join(experiments))}")
        for experiment in experiments:
            quoted = shlex.quote(experiment)
            output = "report" if len(experiments) == 1 else f"report-{quoted}"
            say(console, f"Compare them: {to_copy(f'taugrad dashboard {quoted} --serve', uri)}")
            say(console, f"Sum them up on one page: {to_copy(f'taugrad report {quoted} -o {output}', uri)}")


def _history(client: "MlflowClient", spec: RunSpec, run_id: str, metrics: Mapping[str, float]) -> RunHistory:
    """The run as the store has it; without the store, what the workers reported at the end."""
    try:
        return read_run(client, run_id, _HISTORIES)
    except Exception:
        # The user should see the run's figures even if the store does not answer.
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
    paths = [folder / "fraction_per_iteration.png"]
    with as_written():
        save(fraction_per_iteration(histories), paths[0])
        for metric in common(run.metric for run in histories):
            paths.append(folder / f"{in_path(metric.name)}_against_mb.png")
            save(value_against_mb([run for run in histories if run.metric == metric]), paths[-1])
    return paths


def _draw_steps(client: "MlflowClient", history: RunHistory) -> None:
    """Gives a run the picture of its timeline, if it has one."""
    from .figures import save  # noqa: PLC0415 - matplotlib
    from .style import as_written  # noqa: PLC0415
    from .timelines import read_timelines, steps_of_workers  # noqa: PLC0415

    found = read_timelines(client, [history])
    if found:
        with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
            path = Path(folder) / "timeline.png"
            with as_written():
                save(steps_of_workers(found), path)
            client.log_artifact(history.run_id, str(path), _FIGURES)


def _interactive(histories: Sequence[RunHistory], experiment: str, folder: Path) -> list[Path]:
    """The runs as interactive charts, which MLflow shows among a run's artifacts."""
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
