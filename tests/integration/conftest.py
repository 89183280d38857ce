"""Running taugrad as a user does: as a command, in a folder of its own.

Starting Ray takes 20 s, so a command here has several runs where they are in nobody's way, and commands that
need no Ray of their own run on one, `one_ray`.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands_on_ray import OneRay

MISLEADING = ("RAY_", "MLFLOW_", "TAUGRAD_")


@pytest.fixture(scope="session")
def environment():
    """The environment without what would lead a command to another cluster or store."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(MISLEADING)}
    return ours | {
        "RAY_worker_niceness": "0",  # Ray's workers yield to all others, and other tests run beside these
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # five more processes, for jobs that are not ours
    }


@pytest.fixture
def command():
    return [sys.executable, "-m", "taugrad"]


@pytest.fixture(scope="session")
def kept_ray(tmp_path_factory, environment):
    """Starts the Ray of `one_ray` where there is none."""
    started: list[OneRay] = []

    def get() -> OneRay:
        if not started or started[-1].process.poll() is not None:
            started.append(OneRay(tmp_path_factory.mktemp("one_ray"), environment))
        return started[-1]

    yield get
    for each in started:
        each.close()


@pytest.fixture
def one_ray(kept_ray, request):
    """A Ray that other tests use, too: what a command writes must have names of its test's own.

    It ends with the test behind which none needs it: an idle one still takes a part of a core.
    """
    ray = kept_ray()
    yield ray
    following = request.session.items[request.session.items.index(request.node) + 1 :]
    if not any("one_ray" in getattr(each, "fixturenames", ()) for each in following[:1]):
        ray.close()


@pytest.fixture
def on_own_ray(tmp_path, environment):
    """A Ray of the test's own, for commands in the test's folder that are no search."""
    started = OneRay(tmp_path, environment, dashboard=False)
    yield started
    started.close()


ROOT = Path(__file__).resolve().parents[2]


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
        files = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, files.stdout.split("\0")):
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
