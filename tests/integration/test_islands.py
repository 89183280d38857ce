"""Islands through Ray: a run in two of them, and one that wants each host to be one, with a single host."""

from pathlib import Path

import pytest
import torch
from commands_on_ray import OneRay
from specs import write_digits
from stored import client_of, named_runs

pytestmark = pytest.mark.ray

SPEC = {
    "experiment": "islands",
    "model": {"kind": "mlp", "widths": [1100]},
    "training": {"epochs": 2, "batch_size": 64, "optimizer": {"lr": 0.1}},
    "compressor": "wgt(density(0.02)) | golomb_rice",
    "workers": {"count": 4, "cpus": 0.5},
}
PARAMETERS, ITERATIONS = 64 * 1100 + 1100 + 1100 * 10 + 10, 2 * 23


@pytest.mark.long
def test_a_run_in_islands_and_one_with_too_few_hosts(one_ray: OneRay) -> None:
    specs = [
        write_digits(one_ray.folder, name, **SPEC, sync={"mode": "gradients", "island": island})
        for name, island in (("pairs", 2), ("hosts", "host"))
    ]
    code, said = one_ray("train", *specs)
    assert code == 1, said
    assert "sync.island = host: islands have 4 of 4 workers; there must be two or more" in " ".join(
        said.split()
    )
    client = client_of(one_ray.folder)
    runs = named_runs(client, "islands")
    assert runs["hosts"].info.status == "FAILED"
    run = runs["pairs"]
    assert run.info.status == "FINISHED"
    assert run.data.params["sync.island"] == "2"
    metrics = run.data.metrics
    assert metrics["eval/accuracy"] > 0.7
    steps = client.get_metric_history(run.info.run_id, "comm/wire_bytes")
    assert len(steps) == ITERATIONS
    assert sum(step.value for step in steps) == pytest.approx(metrics["total/wire_gb"] * 1e9, abs=0.5)
    baseline = 4 * 2 * PARAMETERS * ITERATIONS  # one gradient an island
    assert metrics["total/compression_ratio"] == pytest.approx(baseline / metrics["total/wire_gb"] / 1e9)
    assert metrics["total/fraction"] == pytest.approx(0.02, rel=0.5)  # tau is found now and then
    last = sorted(Path(run.data.tags["taugrad.checkpoints"]).glob("iteration_*"))[-1]
    shared = torch.load(last / "shared.pt", weights_only=True)["agreed"]
    assert sum(tensor.numel() for tensor in shared["model"].values()) == PARAMETERS
    owns = [torch.load(last / f"worker_{rank:05d}.pt", weights_only=True)["workers"] for rank in range(4)]
    states = [next(iter(state["exchange"].values())) for state in owns]
    kept = [sum(tensor.numel() for tensor in state["residuals"].values()) for state in states]
    assert kept[0] + kept[1] == kept[2] + kept[3] == PARAMETERS
