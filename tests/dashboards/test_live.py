"""What a log is told of a run, and when; time is what the test says."""

import io
import math
from dataclasses import replace

import numpy as np
from mlflow_data import made_up
from rich.console import Console

from taugrad.dashboards.console import ConsoleDisplay, LiveRun
from taugrad.platform.launching.run_status import StatusUpdate
from taugrad.platform.tasks.metric import LOSS
from taugrad.platform.tracking import names
from taugrad.platform.training.reporting import TRAINING, RunProgress

MOST_S = 30.0
READ_S = 0.3


class Log:
    """A run that is shown in a log, second by second."""

    def __init__(self) -> None:
        self.now, self.told_at, self._text = 0.0, [0.0], io.StringIO()
        self._live = LiveRun(Console(file=self._text, width=200), "gpt", clock=lambda: self.now)

    def lines(self) -> list[str]:
        return self._text.getvalue().splitlines()

    def go_on(self, seconds: float, update: StatusUpdate | None = None) -> list[str]:
        """Time passes; what was printed meanwhile."""
        before = len(self.lines())
        end = self.now + seconds
        with self._live as watch:
            while self.now < end:
                count = len(self.lines())
                watch(update or StatusUpdate())
                update = None
                if len(self.lines()) > count:
                    self.told_at.append(self.now)
                self.now += READ_S
        return self.lines()[before:]


def progress(iteration: int, *, own_models: bool = False) -> RunProgress:
    return RunProgress(
        epoch=1,
        epochs=1,
        iteration=iteration,
        iterations=100,
        loss=2.5,
        metric=LOSS,
        value=None,
        evaluation=0,
        fraction=0.02,
        wire_bytes=1_000_000,
        seconds_left=3.4 * (100 - iteration),
        own_models=own_models,
    )


def test_a_log_is_never_silent_for_long():
    log = Log()
    log.go_on(100)  # nothing is heard of the workers
    told = log.go_on(100, StatusUpdate(stages=["preparing the data"]))
    assert set(told) == {"gpt  preparing the data \u2026"}
    told = log.go_on(100, StatusUpdate(progress(1), stages=[TRAINING]))
    assert all("iteration   1/100 at 3.4 s each  loss 2.5000  test loss" in line for line in told)
    assert all("5:37 left" in line for line in told)
    told = log.go_on(40, StatusUpdate(progress(30)))
    assert all("iteration  30/100" in line for line in told)
    gaps = [later - sooner for sooner, later in zip(log.told_at, log.told_at[1:], strict=False)]
    assert 15 < max(gaps) <= MOST_S


def test_a_terminal_keeps_the_last_line_of_a_run_that_has_ended():
    """What ends it (metrics are sent, workers end) is shown, but is no result."""
    console = Console(force_terminal=True, width=200, file=io.StringIO())
    with LiveRun(console, "gpt") as watch:
        watch(StatusUpdate(progress(90), stages=[TRAINING]))
        watch(StatusUpdate(progress(90), stages=["sending metrics to MLflow"]))
    shown = console.file.getvalue()
    assert shown.rindex("90/") > shown.rfind("sending metrics to MLflow")


class _Store:
    """A store that takes no files."""

    tracking_uri = "sqlite:///mlflow.db"


def ended(value: float, experiment: str) -> str:
    """What is said at the end of a command with one run."""
    display, text = ConsoleDisplay(), io.StringIO()
    display.console = Console(file=text, width=200)
    run = made_up("wgt", value)
    curve = (np.arange(1, 4), np.array([0.1, 0.2, 0.1]))
    display._histories = [replace(run, metrics={names.COMM_FRACTION: curve, "eval/accuracy": curve})]
    display.compare(_Store(), [experiment])
    return text.getvalue()


def test_the_end_of_a_command_writes_below_its_folder_whatever_the_experiments_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = ended(0.9, "/Shared/../../team")
    assert "-o report" in said
    (folder,) = (tmp_path / "taugrad-runs" / "figures").iterdir()
    assert {path.suffix for path in folder.iterdir()} == {".png", ".html", ".csv", ".md"}
    ended(math.nan, "/Shared/../../team")  # and no figure of the first one is left
    assert [path.name for path in folder.glob("*.png")] == ["fraction_per_iteration.png"]


def test_the_end_of_a_command_says_that_files_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taugrad-runs").mkdir()
    (tmp_path / "taugrad-runs" / "figures").touch()
    said = ended(0.9, "digits")
    assert "Not all figures and tables could be written: " in said
    assert "taugrad dashboard digits --serve" in said
