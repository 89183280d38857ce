"""Ctrl-C during `taugrad search`, sent to the process group as a terminal sends it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.ray

TRAINING = """
import time

def curve(spec):
    for epoch in range(1, spec.training.epochs + 1):
        time.sleep(0.5)
        yield 0.5 + spec.compressor.tau, 1000.0 * epoch
"""
SPEC = """
experiment: trial
data: {kind: digits}
model: {kind: mlp}
training: {epochs: 4}
compressor: {kind: wgt, tau: {log: [1e-3, 1e-1]}}
search: {trials: 4, evaluate: "mine:curve", baseline: false, concurrency: 1}
"""


def events_of(journal: Path) -> list[dict]:
    return [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []


def test_ctrl_c_ends_a_search_that_the_same_command_goes_on_with(taugrad, tmp_path, environment, command):
    (tmp_path / "mine.py").write_text(TRAINING)
    (tmp_path / "slow.yaml").write_text(SPEC)
    journal = tmp_path / "taugrad-runs" / "searches" / "trial" / "slow" / "journal.jsonl"
    # What a shell starts in the background ignores the signal, and so does all that this starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*command, "search", "slow.yaml"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 480
    while not any(event["event"] == "end" for event in events_of(journal)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "search slow: interrupted; the same command goes on"
    assert "Traceback" not in said
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive

    before = events_of(journal)
    ended = {event["number"] for event in before if event["event"] == "end"}
    assert 0 < len(ended) < 4
    again = taugrad("search", "slow.yaml")
    assert again.returncode == 0, again.stdout + again.stderr
    events = events_of(journal)
    assert events[: len(before)] == before
    assert sorted(event["number"] for event in events if event["event"] == "end") == [0, 1, 2, 3]
    begun_again = {event["number"] for event in events[len(before) :] if event["event"] == "trial"}
    assert not begun_again & ended
