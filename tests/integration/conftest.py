"""Running taugrad as a user does: as a command, in a folder of its own.

Starting Ray takes 20 s, so a command here has several runs where they are in nobody's way.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from taugrad import cli

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
