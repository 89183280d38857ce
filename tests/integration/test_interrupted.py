"""Ctrl-C at a terminal: the whole foreground group gets it, as in a shell."""

import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from specs import write_digits
from stored import all_runs, client_of
from waiting import TIMEOUT_S, lives, until

pytestmark = pytest.mark.ray

ENDLESS = {"epochs": 100000, "batch_size": 64}
CTRL_C = b"\x03"


class Terminal:
    """A command in the foreground of a terminal of its own, whose Ctrl-C is heard wherever tests run."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._ours, its = pty.openpty()
        self.said = ""
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", "env", "--default-signal=INT", *command],
            cwd=folder, env=environment, stdin=its, stdout=its, stderr=its, start_new_session=True,
        )  # fmt: skip
        os.close(its)

    def read(self, until: Callable[[], bool] = lambda: False) -> None:
        """Reads until something has happened, or to the end."""
        deadline = time.monotonic() + TIMEOUT_S
        with suppress(OSError):  # a terminal's end
            while not until():
                assert time.monotonic() < deadline, self.said
                if select.select([self._ours], [], [], 1)[0]:
                    self.said += os.read(self._ours, 65536).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)


def interrupted(
    command: list[str], folder: Path, environment: dict[str, str], begun: Callable[[], bool], processes: int
) -> str:
    """What a command has said when two Ctrl-C have ended it and all of at least so many processes."""
    write_digits(folder, "spec", experiment="interrupted", training=ENDLESS, checkpoint={"interval": 40})
    terminal = Terminal(command, folder, environment)
    try:
        foreground = psutil.Process(terminal.process.pid)
        terminal.read(until=lambda: begun() and len(foreground.children(recursive=True)) >= processes)
        family = foreground.children(recursive=True)
        terminal.type(CTRL_C)
        time.sleep(0.5)
        terminal.type(CTRL_C)  # must not cut the first one's cleaning up short
        terminal.read()
        assert terminal.process.wait(TIMEOUT_S) == 130, terminal.said
    finally:
        terminal.process.kill()
    assert "Traceback" not in terminal.said
    until(lambda: not any(map(lives, family)))
    return terminal.said


def test_auto_says_how_to_begin_again_while_it_measures(tmp_path, environment, command):
    words = ["auto", "spec.yaml", "--link", "50mbit,20ms", "--target", "accuracy=0.9", "--plan-only"]
    measuring = 2
    said = interrupted([*command, *words], tmp_path, environment, lambda: True, 1 + measuring)
    assert "calibrating: " in said
    assert f"taugrad: interrupted; continue with: taugrad {' '.join(words)}\r\n" in said


def test_train_says_how_to_continue_and_leaves_nothing_behind(tmp_path, new_store, environment, command):
    new_store(tmp_path)

    def trained() -> bool:
        return any(tmp_path.glob("taugrad-runs/*/iteration_*/manifest.json"))

    said = interrupted([*command, "train", "spec.yaml"], tmp_path, environment, trained, 6)
    (run,) = all_runs(client_of(tmp_path), "interrupted")
    assert run.info.status == "KILLED"
    assert f"taugrad: interrupted; continue with: taugrad train --resume {run.info.run_id}\r\n" in said
    assert re.search(r"it continues after iteration [1-9]\d*\r\n", said)
    assert (tmp_path / "taugrad-runs" / ".gitignore").read_text() == "*\n"
