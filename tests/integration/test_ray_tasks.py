"""Images that Ray's tasks read: the same batches as those that workers read themselves, killed or not."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from image_files import png
from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.ray

SPEC = """
experiment: images
name: {name}
data: {{kind: image_folder, path: task_images, size: 12, augment: true}}
model: {{kind: mlp, widths: [16]}}
training: {{epochs: 4, batch_size: 8, optimizer: {{lr: 0.02}}}}
compressor: {{kind: bgt, tau: 5e-3}}
checkpoint: {{interval: 7}}
workers: {{count: 2, cpus: {cpus}, max_restarts: {restarts}}}
"""
CLASSES, IMAGES = 3, 80
ITERATIONS = 4 * 24
NOTICE = "crowded: workers hold all CPUs but 0, a task needs 1"
CHECKPOINTS = "taugrad-runs/*/iteration_*"
TIMEOUT_S = 480


def write_images(root: Path) -> None:
    generator = np.random.default_rng(0)
    for label in range(CLASSES):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for i in range(IMAGES):
            pixels = generator.integers(0, 128, (14, 16, 3)) + 60 * label
            (folder / f"{i}.png").write_bytes(png(pixels.astype(np.uint8)))


def kill_a_worker(one_ray: Any, before: set[Path]) -> None:
    """Of the first run, as soon as it has two checkpoints; those of other runs were there before."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert one_ray.process.poll() is None
        if len({*one_ray.folder.glob(CHECKPOINTS)} - before) >= 2:
            children = psutil.Process(one_ray.process.pid).children(recursive=True)
            workers = [each for each in children if "RayTrainWorker" in " ".join(each.cmdline())]
            if workers:
                os.kill(workers[-1].pid, signal.SIGKILL)
                return
        time.sleep(0.05)
    raise AssertionError(one_ray.output.read_text())


def outcome(folder: Path, name: str) -> tuple[dict[str, object], torch.Tensor, dict[str, str]]:
    """A run's metrics without timings, its weights, its tags."""
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("images")
    (run,) = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")
    assert run.info.status == "FINISHED"
    metrics = {
        key: sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, key))
        for key in run.data.metrics
        if not key.startswith(("time/", "net/")) and key != "total/seconds"
    }
    checkpoint = sorted((folder / "taugrad-runs" / run.info.run_id).glob("iteration_*"))[-1]
    shared = torch.load(checkpoint / "shared.pt", weights_only=True)
    assert shared["done"] == ITERATIONS
    weights = torch.cat([each.flatten() for each in tensors(shared["agreed"])])
    return metrics, weights, run.data.tags


def tensors(tree: object) -> list[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        return [tree.double()]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ()
    return [tensor for value in values for tensor in tensors(value)]


@pytest.mark.long
def test_killed_or_without_free_cpus_a_run_sees_the_same_images(one_ray):
    folder = one_ray.folder
    write_images(folder / "task_images")
    cpus = len(os.sched_getaffinity(0)) / 2
    for name, share, restarts in (("killed", 0.5, 1), ("crowded", cpus, 0)):
        (folder / f"{name}.yaml").write_text(SPEC.format(name=name, cpus=share, restarts=restarts))
    before = set(folder.glob(CHECKPOINTS))
    one_ray.start("train", "killed.yaml", "crowded.yaml")
    kill_a_worker(one_ray, before)
    code, said = one_ray.finish()
    assert code == 0, said
    assert NOTICE in said, said
    assert said.count("examples themselves") + said.count("examples itself") == 1, (
        said
    )  # only where workers hold every CPU
    metrics, weights, tags = outcome(folder, "crowded")
    assert [step for step, _ in metrics["train/loss"]] == list(range(1, ITERATIONS + 1))
    assert len(tags["taugrad.data"]) == 64
    assert len(weights) > CLASSES * 16
    # Every batch of the other one came through Ray's tasks, before the kill and after it.
    other, other_weights, _ = outcome(folder, "killed")
    assert other == metrics
    assert torch.equal(other_weights, weights)
