"""Damaged checkpoints of a run; test_soak has one that dies."""

import shutil
from pathlib import Path

import pytest
from benchmarks.platform.faults.comparing import Outcome, differences, outcome_of
from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.ray


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
