"""Images that Ray Data reads: the same batches as those that workers read themselves, killed or not."""

import os
import signal
import subprocess
import time
import zlib
from pathlib import Path
from struct import pack

import numpy as np
import psutil
import pytest
import torch
from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.ray

SPEC = """
experiment: images
name: {name}
data: {{kind: image_folder, path: images, size: 12, augment: true}}
model: {{kind: mlp, widths: [16]}}
training: {{epochs: 4, batch_size: 8, optimizer: {{lr: 0.02}}}}
compressor: {{kind: bgt, tau: 5e-3}}
checkpoint: {{interval: 7}}
workers: {{count: 2, cpus: {cpus}, max_restarts: {restarts}}}
"""
CLASSES, IMAGES = 3, 80
ITERATIONS = 4 * 24
NOTICE = "crowded: workers hold all CPUs but 0, Ray Data needs 1"
TIMEOUT_S = 480


def png(pixels: np.ndarray) -> bytes:
    """Of uint8 [height, width, 3]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def write_images(root: Path) -> None:
    generator = np.random.default_rng(0)
    for label in range(CLASSES):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for i in range(IMAGES):
            pixels = generator.integers(0, 128, (14, 16, 3)) + 60 * label
            (folder / f"{i}.png").write_bytes(png(pixels.astype(np.uint8)))


def kill_a_worker(process: subprocess.Popen[bytes], output: Path) -> None:
    """Of the first run, as soon as it has two checkpoints."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, output.read_text()
        if len(list(output.parent.glob("taugrad-runs/*/iteration_*"))) >= 2:
            children = psutil.Process(process.pid).children(recursive=True)
            workers = [each for each in children if "RayTrainWorker" in " ".join(each.cmdline())]
            if workers:
                os.kill(workers[-1].pid, signal.SIGKILL)
                return
        time.sleep(0.05)
    raise AssertionError(output.read_text())


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


def test_killed_or_without_ray_data_a_run_sees_the_same_images(tmp_path, environment, command):
    write_images(tmp_path / "images")
    cpus = len(os.sched_getaffinity(0)) / 2
    for name, share, restarts in (("killed", 0.5, 1), ("whole", 0.5, 0), ("crowded", cpus, 0)):
        (tmp_path / f"{name}.yaml").write_text(SPEC.format(name=name, cpus=share, restarts=restarts))
    output = tmp_path / "output.txt"
    line = [*command, "train", "killed.yaml", "whole.yaml", "crowded.yaml"]
    with output.open("w") as log:
        process = subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        try:
            kill_a_worker(process, output)
            assert process.wait(TIMEOUT_S) == 0, output.read_text()
        finally:
            process.kill()
            process.wait()
    said = output.read_text()
    assert NOTICE in said, said
    assert said.count("examples themselves") + said.count("examples itself") == 1, (
        said
    )  # only where workers hold every CPU
    metrics, weights, tags = outcome(tmp_path, "whole")
    assert [step for step, _ in metrics["train/loss"]] == list(range(1, ITERATIONS + 1))
    assert len(tags["taugrad.data"]) == 64
    assert len(weights) > CLASSES * 16
    for name in ("killed", "crowded"):
        other, other_weights, _ = outcome(tmp_path, name)
        assert other == metrics, name
        assert torch.equal(other_weights, weights), name
