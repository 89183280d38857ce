"""Running taugrad as a user does: as a command, in a folder of its own.

Starting Ray takes 20 s, so commands that need no Ray of their own run on one, `one_ray`; what several tests
look at is trained once.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.platform.faults.commands import clean_environment
from commands_on_ray import OneRay
from waiting import said_by

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
    paths = [
        environment.get("PYTHONPATH", ""),
        str(ROOT / "tests" / "compressors"),
    ]  # for ray_train_process.py
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
    if "one_ray" in request.fixturenames and not any("one_ray" in each.fixturenames for each in following):
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

    def write(self, name: str, storage: str, restarts: int) -> str:
        """The spec of one."""
        text = SHARDED.format(name=name, hold=self.hold, restarts=restarts, storage=storage)
        (self.ray.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"


@pytest.fixture(scope="session")
def sharded(one_ray):
    """One of them, called `whole`, has come to its end, and nothing has happened to it."""
    (one_ray.folder / "pausing.py").write_text(PAUSING)
    runs = Sharded(one_ray)
    code, said = one_ray("train", runs.write("whole", "taugrad-runs", 0), "--allow-custom")
    assert code == 0, said
    return runs


@pytest.fixture(scope="session")
def readme():
    """The fenced blocks of commands of a section of the README, as they stand."""

    def blocks(title: str) -> list[str]:
        _, found, rest = (ROOT / "README.md").read_text().partition(f"\n## {title}\n")
        assert found, title
        return re.findall(r"^```\n(.*?)^```$", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)

    return blocks


class Shell:
    """Starts commands in a bash that knows nothing but a copy of the repository, and our .venv in it."""

    def __init__(self, folder: Path) -> None:
        """Copies the repository into a folder; beside it is the home."""
        self.folder, self._home = folder / "taugrad", folder / "home"
        for name in filter(None, said_by(["git", "ls-files", "-z"], cwd=ROOT).split("\0")):
            if (ROOT / name).is_symlink() or (ROOT / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name, follow_symlinks=False)
        (self.folder / ".venv").symlink_to(sys.prefix)
        self._home.mkdir()

    def __call__(self, commands: str, log: Path, **variables: str) -> "subprocess.Popen[str]":
        """Starts some."""
        with log.open("w") as output:
            return subprocess.Popen(
                # Where the tests run in the background, Ctrl-C may be ignored, and that is inherited.
                ["env", "--default-signal=INT", "bash", "-e", "-c", commands],
                cwd=self.folder,
                env={"HOME": str(self._home), "PATH": "/usr/local/bin:/usr/bin:/bin"} | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,  # what Ctrl-C would reach
            )


@pytest.fixture(scope="module")
def fresh_shell(tmp_path_factory):
    """See `Shell`."""
    return Shell(tmp_path_factory.mktemp("fresh"))
