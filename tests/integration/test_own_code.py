"""A user's own model and data, and a run that fails between others: one command, three runs."""

import re

import pytest
from specs import write_digits
from stored import client_of, named_runs

from taugrad.platform.tracking import names

pytestmark = pytest.mark.ray

MINE = """
import torch
from taugrad.platform.data import DataSet

def data(examples):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(examples, 1, 4, 4, generator=g)
    y = (x.sum((1, 2, 3)) > 0).long()
    return DataSet(x, y, x[:100], y[:100], classes=2)

def net(channels, height, width, classes, hidden):
    size = channels * height * width
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, hidden),
                               torch.nn.ReLU(), torch.nn.Linear(hidden, classes))

class Tires(torch.nn.Linear):
    steps = 0
    def forward(self, x):
        self.steps += self.training
        if self.steps > 3:
            raise ValueError("tired")
        return super().forward(x.flatten(1))

def tires(channels, height, width, classes):
    return Tires(channels * height * width, classes)
"""
RUNS = {
    "diverges": {
        "compressor": "wgt(0.001)",
        "training": {"optimizer": {"lr": 1e30}},
        "sync": {"mode": "simulated"},
        "workers": {"cpus": 0.5},
    },
    "tires": {"model": {"kind": "custom", "factory": "own:tires"}, "workers": {"cpus": 0.5}},
    "own": {
        "data": {"kind": "custom", "factory": "own:data", "arguments": {"examples": 330}},
        "model": {"kind": "custom", "factory": "own:net", "arguments": {"hidden": 8}},
        "compressor": "wgt(0.001)",
        "training": {"epochs": 5, "batch_size": 32, "optimizer": {"lr": 0.1}},
        "sync": {"mode": "simulated", "of": {"mode": "gradients", "pattern": "sharded"}},
        "workers": {"cpus": 0.5},
    },
}


@pytest.mark.long
def test_a_run_that_fails_says_why_and_one_of_the_users_own_goes_on(one_ray):
    """The module is found where the command is given; a gradient that is not finite ends its own run only."""
    (one_ray.folder / "own.py").write_text(MINE)
    specs = [write_digits(one_ray.folder, name, **fields) for name, fields in RUNS.items()]
    code, said = one_ray("train", *specs, "--allow-custom")
    assert code == 1, said  # two of three failed
    diverged, rest = said.split("such as --training.optimizer.lr 1e+29")
    assert "diverges: failed" in diverged
    assert "NonFiniteGradient: the gradient of" in diverged
    assert "compressor.nonfinite=skip" in diverged
    assert "--resume" not in diverged  # it would diverge again
    tired, after = rest.split("--resume", 1)
    assert re.search(r"tires: failed: worker \d: ValueError: tired \(\S*own.py:21 in forward\)", tired)
    assert "when that is fixed" in tired
    assert "epoch 5/5" in after
    assert "own: failed" not in after
    client = client_of(one_ray.folder)
    run_id = named_runs(client, "taugrad")["own"].info.run_id
    artifacts = {artifact.path for artifact in client.list_artifacts(run_id)}
    assert names.ARTIFACT_LINKS in artifacts
    assert names.ARTIFACT_TIMELINE not in artifacts  # simulated workers wait for nobody
