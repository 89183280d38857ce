"""A run that dies goes on, and nothing shows that it died."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
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
workers: {{max_restarts: {restarts}}}
"""
ITERATIONS = 1200


def start(folder: Path, environment: dict[str, str], command: list[str], *arguments: str):
    output = (folder / "output.txt").open("a")
    return subprocess.Popen(
        [*command, "train", *arguments], cwd=folder, env=environment, stdout=output, stderr=output
    )


def kill_a_worker_after_a_checkpoint(process: subprocess.Popen, folder: Path) -> None:
    """Ends one Ray Train worker with SIGKILL as soon as the run has two checkpoints."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "output.txt").read_text()
        if len(list(folder.glob("taugrad-runs/*/iteration_*"))) >= 2:
            workers = [
                child
                for child in psutil.Process(process.pid).children(recursive=True)
                if "RayTrainWorker" in " ".join(child.cmdline() or [child.name()])
            ]
            if workers:
                os.kill(workers[-1].pid, signal.SIGKILL)
                return
        time.sleep(0.1)
    raise AssertionError("no checkpoint in time:\n" + (folder / "output.txt").read_text())


def outcome(folder: Path, name: str) -> dict:
    """What is left of a finished run, timings apart."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("resume")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    run_id = run.info.run_id
    checkpoint = sorted((folder / "taugrad-runs" / run_id).glob("iteration_*"))[-1]
    metrics = {}
    for key in run.data.metrics:
        if not key.startswith("time/") and key != "total/seconds":
            points = client.get_metric_history(run_id, key)
            metrics[key] = sorted((p.step, p.value) for p in points)
    return {
        "status": run.info.status,
        "metrics": metrics,
        "shared": torch.load(checkpoint / "shared.pt", weights_only=True),
        "workers": [torch.load(checkpoint / f"worker_{rank:05d}.pt", weights_only=True) for rank in range(2)],
    }


def assert_equal(a, b, where: str = "") -> None:
    """Equality of nested states, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if key not in {"seconds", "spec", "undelivered"}:
                assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{i}]")
    else:
        assert a == b, where


def test_killed_runs_end_as_one_that_was_never_killed(tmp_path, environment, command):
    for name, restarts in (("whole", 0), ("resumed", 0), ("restarted", 1)):
        (tmp_path / f"{name}.yaml").write_text(SPEC.format(name=name, restarts=restarts))

    # Killed, and taken up again by hand.
    process = start(tmp_path, environment, command, "resumed.yaml")
    kill_a_worker_after_a_checkpoint(process, tmp_path)
    assert process.wait(120) == 1
    text = (tmp_path / "output.txt").read_text()
    # Ray sees the dead worker, the other worker its closed connection: whichever is told first.
    assert "process died" in text or "Connection closed by peer" in text
    run_id = text.rsplit("--resume ", 1)[1].split()[0]
    process = start(tmp_path, environment, command, "--resume", run_id)
    assert process.wait(180) == 0, (tmp_path / "output.txt").read_text()

    # Killed, and taken up again by the run itself; then one that nothing happens to.
    finished = len(list(tmp_path.glob("taugrad-runs/*/iteration_*")))
    process = start(tmp_path, environment, command, "restarted.yaml", "whole.yaml")
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("taugrad-runs/*/iteration_*"))) < finished + 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    kill_a_worker_after_a_checkpoint(process, tmp_path)
    assert process.wait(240) == 0, (tmp_path / "output.txt").read_text()

    whole = outcome(tmp_path, "whole")
    assert whole["status"] == "FINISHED"
    assert [step for step, _ in whole["metrics"]["comm/fraction"]] == list(range(1, ITERATIONS + 1))
    for name in ("resumed", "restarted"):
        assert_equal(outcome(tmp_path, name), whole, name)


def test_what_cannot_be_resumed_is_refused(taugrad, tmp_path):
    answer = taugrad("train", "--resume", "0" * 32)
    assert answer.returncode == 2
    assert "--resume 00000000000000000000000000000000: no such run" in answer.stderr
