"""Running taugrad as a user does: as a command, in a folder of its own.

Starting Ray takes 20 s, so commands that need no Ray of their own run on one, `one_ray`; what several tests
look at is trained once.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.platform.faults.commands import clean_environment
from commands_on_ray import OneRay

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def environment():
    """The environment without what would lead a command to another cluster or store."""
    return clean_environment()


@pytest.fixture
def command():
    return [sys.executable, "-m", "taugrad"]


@pytest.fixture(scope="session")
def one_ray(tmp_path_factory, new_store, environment):
    """A Ray that tests share: what a command writes must have names of its test's own."""
    paths = [environment.get("PYTHONPATH", ""), str(ROOT / "tests" / "compressors")]  # ray_train_process.py's
    searched = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    folder = tmp_path_factory.mktemp("one_ray")
    new_store(folder)
    ray = OneRay(folder, environment | searched)
    yield ray
    ray.close()


@pytest.fixture(autouse=True)
def _an_idle_ray_ends(request):
    """With the test behind which none needs it: it still takes a part of a core."""
    yield
    session = request.session.items
    following = session[session.index(request.node) + 1 :][:1]
    if "one_ray" in request.fixturenames and not any("one_ray" in item.fixturenames for item in following):
        request.getfixturevalue("one_ray").close()


SHARDED = """
experiment: soak
name: {name}
data: {{kind: synthetic, train_examples: 640}}
model: {{kind: custom, factory: "pausing:net", arguments: {{hold: "{hold}"}}}}
training: {{epochs: 25, batch_size: 32, optimizer: {{lr: 0.02}}}}
compressor: "strom(tau=0.005) | golomb_rice"
sync: {{mode: sharded}}
checkpoint: {{interval: 40}}
workers: {{cpus: 0.5, max_restarts: {restarts}}}
storage: {storage}
publish: {publish}
"""
PAUSING = """
import os, time, torch

class Pausing(torch.nn.Sequential):
    def forward(self, x):
        while os.path.exists(self.hold):
            time.sleep(0.005)
        return super().forward(x)

def net(channels, height, width, classes, hold):
    net = Pausing(torch.nn.Flatten(), torch.nn.Linear(channels * height * width, 16),
                  torch.nn.ReLU(), torch.nn.Linear(16, classes))
    net.hold = hold
    return net
"""


@dataclass
class Sharded:
    """Runs of two workers in the mode `sharded` on the shared Ray; each has 500 iterations."""

    ray: OneRay
    iterations: int = 500

    @property
    def hold(self) -> Path:
        """While this file is there, no iteration begins."""
        return self.ray.folder / "hold"

    def write(self, name: str, storage: str, restarts: int, publish: str = "{}") -> str:
        """The spec of one."""
        text = SHARDED.format(name=name, hold=self.hold, restarts=restarts, storage=storage, publish=publish)
        (self.ray.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"


@pytest.fixture(scope="session")
def sharded(one_ray):
    """One of them, called `whole`, has come to its end, and nothing has happened to it; it has published."""
    (one_ray.folder / "pausing.py").write_text(PAUSING)
    runs = Sharded(one_ray)
    publish = f"{{path: {one_ray.folder}/weights, every: 100, full_every: 2}}"
    code, said = one_ray("train", runs.write("whole", "taugrad-runs", 0, publish), "--allow-custom")
    assert code == 0, said
    return runs
