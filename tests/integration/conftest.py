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
from commands_on_ray import OneRay, listened_by

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


PAUSABLE = """
experiment: soak
name: {name}
data: {{kind: synthetic, train_examples: 640}}
model: {{kind: custom, factory: "pausing:net", arguments: {{hold: "{hold}"}}}}
training: {{epochs: 25, batch_size: 32, optimizer: {{lr: 0.02}}}}
compressor: wgt(0.01)
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
class PausableRuns:
    """Runs of two workers on the shared Ray; each has 500 iterations."""

    ray: OneRay
    iterations: int = 500
    output: str = ""
    listened: frozenset[str] = frozenset()
    """What the undisturbed one has said, and on which addresses its processes listened."""

    @property
    def hold(self) -> Path:
        """While this file is there, no iteration begins."""
        return self.ray.folder / "hold"

    def write(self, name: str, storage: str, restarts: int, publish: str = "{}") -> str:
        """The spec of one."""
        text = PAUSABLE.format(name=name, hold=self.hold, restarts=restarts, storage=storage, publish=publish)
        (self.ray.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"


@pytest.fixture(scope="session")
def undisturbed(one_ray):
    """One of them, called `wgt`, has come to its end, and has published its weights.

    A run on Ray starts some ten processes, which takes longer than it trains: several tests look at this one.
    """
    (one_ray.folder / "pausing.py").write_text(PAUSING)
    runs = PausableRuns(one_ray)
    publish = "{path: weights, every: 100, full_every: 2}"  # of the folder of the command
    spec = runs.write("wgt", "taugrad-runs", 0, publish)
    command = one_ray.start(["train", spec, "--allow-custom"], one_ray.folder, compare=True)
    runs.listened, runs.output = listened_by(command), command.said
    assert command.code == 0, command.said
    return runs
