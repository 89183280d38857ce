"""A run that dies goes on, and nothing shows that it died."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

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
training: {{epochs: 6, batch_size: 32, optimizer: {{lr: 0.02}}}}
compressor: {{kind: bgt, tau: 5e-3}}
checkpoint: {{interval: 30}}
storage: killed-runs
workers: {{max_restarts: 0}}
"""
ITERATIONS = 600
TIMEOUT_S = 480


def kill_a_worker_after_two_checkpoints(one_ray: Any) -> Path:
    """Ends one Ray Train worker of the first run with SIGKILL; the run's folder."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert one_ray.process.poll() is None
        found = Counter(each.parent for each in one_ray.folder.glob("killed-runs/*/iteration_*"))
        for run in (run for run, count in found.items() if count >= 2):
            workers = [
                child
                for child in psutil.Process(one_ray.process.pid).children(recursive=True)
                if "RayTrainWorker" in " ".join(child.cmdline() or [child.name()])
            ]
            if workers:
                os.kill(workers[-1].pid, signal.SIGKILL)
                return run
        time.sleep(0.03)
    raise AssertionError("no checkpoint in time:\n" + one_ray.output.read_text())


def outcome(folder: Path, name: str) -> Outcome:
    """What is left of a finished run, timings apart."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("resume")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    (kept,) = folder.glob(f"*-runs/{run.info.run_id}")
    return outcome_of(client, run, kept.parent)


def assert_equal(a: Outcome, b: Outcome) -> None:
    """Equality of what two runs left, tensors bit for bit."""
    assert len(a["workers"]) == len(b["workers"]) == 2
    assert list(differences(a, b)) == []


def test_a_killed_run_ends_as_one_that_was_never_killed(one_ray, environment, command):
    for name in ("whole", "resumed"):
        (one_ray.folder / f"{name}.yaml").write_text(SPEC.format(name=name))

    # One that is killed, one that nothing happens to. test_ray_data has one that goes on by itself.
    one_ray.start("train", "resumed.yaml", "whole.yaml")
    killed = kill_a_worker_after_two_checkpoints(one_ray)
    code, text = one_ray.finish()
    assert code == 1, text
    # Ray sees the dead worker, the other worker its lost connection: whichever is told first.
    assert re.search("process died|Connection (closed|reset) by peer", text), text
    (run_id,) = re.findall(r"--resume (\w+)", text)
    assert run_id == killed.name

    again = subprocess.run(  # on a Ray of its own
        [*command, "train", "--resume", run_id],
        cwd=one_ray.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert again.returncode == 0, again.stdout + again.stderr

    whole = outcome(one_ray.folder, "whole")
    assert whole["status"] == "FINISHED"
    assert [step for step, _ in whole["metrics"]["comm/fraction"]] == list(range(1, ITERATIONS + 1))
    assert_equal(outcome(one_ray.folder, "resumed"), whole)


SHORT = """
experiment: resume
name: short
data: {kind: synthetic, train_examples: 640}
model: {kind: mlp, widths: [16]}
training: {epochs: 4, batch_size: 32, optimizer: {lr: 0.02}}
compressor: {kind: bgt, tau: 5e-3}
checkpoint: {interval: 20}
storage: short-runs
workers: {cpus: 0.5}
"""


def flip(path: Path) -> None:
    """Turns one bit of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.long
def test_damaged_checkpoints_are_named_and_the_newest_good_one_is_taken(one_ray):
    (one_ray.folder / "short.yaml").write_text(SHORT)
    code, said = one_ray("train", "short.yaml")
    assert code == 0, said
    (newest,) = (one_ray.folder / "short-runs").glob("*/iteration_00000080")
    run, snapshot = newest.parent, newest.parent / "checkpoint_manager_snapshot.json"
    assert sorted(each.name for each in run.glob("iteration_*")) == [
        "iteration_00000060",
        "iteration_00000080",
    ]
    assert not snapshot.exists()  # Ray's own list is not used
    undisturbed = outcome(one_ray.folder, "short")
    client = MlflowClient(f"sqlite:///{one_ray.folder}/mlflow.db")

    def resumed() -> tuple[int, str]:
        client.set_terminated(run.name, "FAILED")
        code, said = one_ray("train", "--resume", run.name)
        assert "Traceback" not in said
        return code, said

    # A bit of what only worker 1 reads, and a list that Ray would refuse.
    flip(newest / "worker_00001.pt")
    snapshot.write_text('{"ray_version": "2.60.0", "checkpoint_re')
    code, said = resumed()
    assert code == 0, said
    damaged = "iteration_00000080: worker_00001.pt is damaged: its SHA-256 is not that in manifest.json"
    assert f"checkpoint not used: {damaged}; going on from iteration_00000060" in said
    assert_equal(outcome(one_ray.folder, "short"), undisturbed)

    # A folder is gone.
    shutil.rmtree(newest)
    code, said = resumed()
    assert (code, "checkpoint not used" in said) == (0, False), said
    assert_equal(outcome(one_ray.folder, "short"), undisturbed)

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
