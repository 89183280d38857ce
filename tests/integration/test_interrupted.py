"""Ctrl-C at a terminal: the whole foreground group gets it, as in a shell."""

import re
import shlex
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
from specs import write_digits
from stored import all_runs, client_of
from waiting import TIMEOUT_S, lives, until

pytestmark = pytest.mark.ray

ENDLESS = {"epochs": 100000, "batch_size": 64}
CTRL_C = b"\x03"


def interrupted(
    command: list[str], folder: Path, environment: dict[str, str], begun: Callable[[], bool], processes: int
) -> str:
    """What a command has said when two Ctrl-C have ended it and all of at least so many processes."""
    write_digits(folder, "spec", experiment="interrupted", training=ENDLESS, checkpoint={"interval": 40})
    log = folder / "said.txt"
    # A terminal of its own, whose Ctrl-C is heard wherever tests run.
    line = f"exec env --default-signal=INT {shlex.join(command)}"
    terminal = subprocess.Popen(
        ["script", "--quiet", "--flush", "--return", "--command", line, log],
        cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    said = partial(log.read_text, errors="replace")
    foreground = psutil.Process(terminal.pid)
    try:
        until(
            lambda: begun() and len(foreground.children(recursive=True)) >= processes,
            said,
            goes_on=lambda: terminal.poll() is None,
        )
        family = foreground.children(recursive=True)
        for _ in range(2):  # the second must not cut the first one's cleaning up short
            terminal.stdin.write(CTRL_C)
            terminal.stdin.flush()
            time.sleep(0.5)
        assert terminal.wait(TIMEOUT_S) == 130, said()
    finally:
        terminal.kill()
        terminal.wait()
        terminal.stdin.close()
    assert "Traceback" not in said()
    until(lambda: not any(map(lives, family)))
    return said()


def test_auto_says_how_to_begin_again_while_it_measures(tmp_path, environment, command):
    words = ["auto", "spec.yaml", "--link", "50mbit,20ms", "--target", "accuracy=0.9", "--plan-only"]
    measuring = 2
    said = interrupted([*command, *words], tmp_path, environment, lambda: True, 1 + measuring)
    assert "calibrating: " in said
    assert f"taugrad: interrupted; continue with: taugrad {' '.join(words)}\n" in said


def test_train_says_how_to_continue_and_leaves_nothing_behind(tmp_path, new_store, environment, command):
    new_store(tmp_path)

    def trained() -> bool:
        return any(tmp_path.glob("taugrad-runs/*/iteration_*/manifest.json"))

    words = [*command, "train", "spec.yaml"]
    said = interrupted(words, tmp_path, environment, trained, 6)
    (run,) = all_runs(client_of(tmp_path), "interrupted")
    assert run.info.status == "KILLED"
    assert f"taugrad: interrupted; continue with: taugrad train --resume {run.info.run_id}\n" in said
    (last,) = re.findall(r"it continues after iteration ([1-9]\d*)\n", said)
    # It wrote a checkpoint where it stopped: no iteration is made again.
    recorded = client_of(tmp_path).get_metric_history(run.info.run_id, "train/loss")
    assert int(last) == max(metric.step for metric in recorded)
    assert (tmp_path / "taugrad-runs" / ".gitignore").read_text() == "*\n"
