"""A run that dies goes on, and nothing shows that it died."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from faults.comparing import Outcome, differences, outcome_of
from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.ray

SPEC = """
experiment: resume
name: {name}
data: {{kind: synthetic, train_examples: 3200}}
model: {{kind: mlp, widths: [64]}}
training: {{epochs: 12, batch_size: 32, optimizer: {{lr: 0.02}}}}
compressor: {{kind: bgt, tau: 5e-3}}
checkpoint: {{interval: 60}}
workers: {{max_restarts: 0}}
"""
ITERATIONS = 1200
TIMEOUT_S = 480


@pytest.fixture
def start(tmp_path: Path, environment: dict[str, str], command: list[str]):
    """Starts `taugrad train` in the test's folder; what does not end by itself ends with the test."""
    started: list[subprocess.Popen] = []
    with (tmp_path / "output.txt").open("a") as output:

        def run(*arguments: str) -> subprocess.Popen:
            line = [*command, "train", *arguments]
            started.append(
                subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=output, stderr=output)
            )
            return started[-1]

        yield run
    for process in started:
        process.kill()
        process.wait()


def kill_a_worker_after_two_checkpoints(process: subprocess.Popen, folder: Path) -> Path:
    """Ends one Ray Train worker of the first run with SIGKILL; the run's folder."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "output.txt").read_text()
        found = Counter(each.parent for each in folder.glob("taugrad-runs/*/iteration_*"))
        for run in (run for run, count in found.items() if count >= 2):
            workers = [
                child
                for child in psutil.Process(process.pid).children(recursive=True)
                if "RayTrainWorker" in " ".join(child.cmdline() or [child.name()])
            ]
            if workers:
                os.kill(workers[-1].pid, signal.SIGKILL)
                return run
        time.sleep(0.1)
    raise AssertionError("no checkpoint in time:\n" + (folder / "output.txt").read_text())


def outcome(folder: Path, name: str) -> Outcome:
    """What is left of a finished run, timings apart."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("resume")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    return outcome_of(client, run, folder / "taugrad-runs")


def assert_equal(a: Outcome, b: Outcome) -> None:
    """Equality of what two runs left, tensors bit for bit."""
    assert len(a["workers"]) == len(b["workers"]) == 2
    assert list(differences(a, b)) == []


def test_a_killed_run_ends_as_one_that_was_never_killed(start, tmp_path):
    for name in ("whole", "resumed"):
        (tmp_path / f"{name}.yaml").write_text(SPEC.format(name=name))

    # One that is killed, one that nothing happens to. test_ray_data has one that goes on by itself.
    process = start("resumed.yaml", "whole.yaml")
    killed = kill_a_worker_after_two_checkpoints(process, tmp_path)
    assert process.wait(TIMEOUT_S) == 1, (tmp_path / "output.txt").read_text()
    text = (tmp_path / "output.txt").read_text()
    # Ray sees the dead worker, the other worker its lost connection: whichever is told first.
    assert re.search("process died|Connection (closed|reset) by peer", text), text
    (run_id,) = re.findall(r"--resume (\w+)", text)
    assert run_id == killed.name

    process = start("--resume", run_id)
    assert process.wait(TIMEOUT_S) == 0, (tmp_path / "output.txt").read_text()

    whole = outcome(tmp_path, "whole")
    assert whole["status"] == "FINISHED"
    assert [step for step, _ in whole["metrics"]["comm/fraction"]] == list(range(1, ITERATIONS + 1))
    assert_equal(outcome(tmp_path, "resumed"), whole)


SHORT = """
experiment: resume
name: short
data: {kind: synthetic, train_examples: 640}
model: {kind: mlp, widths: [16]}
training: {epochs: 4, batch_size: 32, optimizer: {lr: 0.02}}
compressor: {kind: bgt, tau: 5e-3}
checkpoint: {interval: 20}
workers: {cpus: 0.5}
"""


def flip(path: Path) -> None:
    """Turns one bit of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_damaged_checkpoints_are_named_and_the_newest_good_one_is_taken(on_one_ray, tmp_path):
    (tmp_path / "short.yaml").write_text(SHORT)
    code, said = on_one_ray("train", "short.yaml")
    assert code == 0, said
    (newest,) = (tmp_path / "taugrad-runs").glob("*/iteration_00000080")
    run, snapshot = newest.parent, newest.parent / "checkpoint_manager_snapshot.json"
    assert sorted(each.name for each in run.glob("iteration_*")) == [
        "iteration_00000060",
        "iteration_00000080",
    ]
    assert not snapshot.exists()  # Ray's own list is not used
    undisturbed = outcome(tmp_path, "short")
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")

    def resumed() -> tuple[int, str]:
        client.set_terminated(run.name, "FAILED")
        code, said = on_one_ray("train", "--resume", run.name)
        assert "Traceback" not in said
        return code, said

    # A bit of what only worker 1 reads, and a list that Ray would refuse.
    flip(newest / "worker_00001.pt")
    snapshot.write_text('{"ray_version": "2.60.0", "checkpoint_re')
    code, said = resumed()
    assert code == 0, said
    damaged = "iteration_00000080: worker_00001.pt is damaged: its SHA-256 is not that in manifest.json"
    assert f"checkpoint not used: {damaged}; going on from iteration_00000060" in said
    assert_equal(outcome(tmp_path, "short"), undisturbed)

    # A folder is gone.
    shutil.rmtree(newest)
    code, said = resumed()
    assert (code, "checkpoint not used" in said) == (0, False), said
    assert_equal(outcome(tmp_path, "short"), undisturbed)

    # None is good. Nothing starts, and the run stays what it was.
    (newest / "shared.pt").unlink()
    flip(run / "iteration_00000060" / "manifest.json")
    code, said = resumed()
    assert code == 2
    assert "iteration_00000080: shared.pt is missing; iteration_00000060: manifest.json is damaged" in said
    assert said.count("\n") == 1
    assert client.get_run(run.name).info.status == "FAILED"


def test_what_cannot_be_resumed_is_refused(taugrad):
    answer = taugrad("train", "--resume", "0" * 32)
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()  # where there is no store there is no run
    assert line.startswith("taugrad: tracking store: there is no ")
    assert "mlflow.db, the default" in line
