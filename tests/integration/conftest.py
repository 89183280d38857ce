"""Running taugrad as a user does: as a command, in a folder of its own.

Starting Ray takes 20 s, so a command here has several runs where they are in nobody's way.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taugrad import cli

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))  # where `faults` is

TIMEOUT_S = 480  # other tests run at the same time
MISLEADING = ("RAY_", "MLFLOW_", "TAUGRAD_")
RunCommand = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment without what would lead a command to another cluster or store."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(MISLEADING)}
    return ours | {
        "RAY_worker_niceness": "0",  # Ray's workers yield to all others, and other tests run beside these
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # five more processes, for jobs that are not ours
    }


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-m", "taugrad"]


@pytest.fixture
def taugrad(tmp_path: Path, environment: dict[str, str], command: list[str]) -> RunCommand:
    """Runs a command in the test's folder and returns what came of it."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments],
            cwd=tmp_path,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    return run


class OneRay:
    """Runs commands one after the other on one Ray, in a folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        line = [sys.executable, str(Path(__file__).with_name("one_ray.py"))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            line, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )

    def __call__(self, *arguments: str) -> tuple[int, str]:
        """The exit code and all that was said."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()
        said = ""
        for each in self.process.stdout:
            if each.startswith("exit "):
                return int(each.split()[1]), said
            said += each
        raise AssertionError(said)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def on_one_ray(tmp_path: Path, environment: dict[str, str]) -> Iterator[OneRay]:
    """Runs commands in the test's folder."""
    started = OneRay(tmp_path, environment)
    yield started
    started.close()


@pytest.fixture
def wrong_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What a command says that must end with exit code 2 before it starts anything; run in this process."""
    for name in [name for name in os.environ if name.startswith(MISLEADING)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as `python -m taugrad` has it

    def run(*arguments: str) -> str:
        before = set(tmp_path.iterdir())
        assert cli.main(arguments) == cli.WRONG_INPUT, arguments
        assert set(tmp_path.iterdir()) == before  # no store, no folder of runs
        ray = sys.modules.get("ray")
        assert ray is None or not ray.is_initialized()
        return capsys.readouterr().err

    return run


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def readme() -> Callable[[str], list[str]]:
    """The fenced blocks of commands of a section of the README, as they stand."""

    def blocks(title: str) -> list[str]:
        _, found, rest = (ROOT / "README.md").read_text().partition(f"\n## {title}\n")
        assert found, title
        return re.findall(r"^```\n(.*?)^```$", rest.partition("\n## ")[0], re.MULTILINE | re.DOTALL)

    return blocks


@pytest.fixture
def fresh_shell(tmp_path: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """Starts commands in a bash that knows nothing but a copy of the repository, and our .venv in it."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    copy, home = tmp_path / "taugrad", tmp_path / "home"
    for name in filter(None, files.stdout.split("\0")):
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    (copy / ".venv").symlink_to(sys.prefix)
    home.mkdir()

    def start(commands: str, log: Path, **variables: str) -> subprocess.Popen[str]:
        with log.open("w") as output:
            return subprocess.Popen(
                # Where the tests run in the background, Ctrl-C may be ignored, and that is inherited.
                ["env", "--default-signal=INT", "bash", "-e", "-c", commands],
                cwd=copy,
                env={"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin"} | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,  # what Ctrl-C would reach
            )

    return start
