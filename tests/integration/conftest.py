"""Running taugrad as a user does: as a command, in a folder of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TIMEOUT_S = 240
SPEC = """
experiment: trial
data: {kind: digits}
model: {kind: mlp, widths: [32]}
training: {epochs: 2, batch_size: 64, optimizer: {lr: 0.1}}
"""

RunCommand = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment without what would lead a command to another cluster or store."""
    misleading = ("RAY_", "MLFLOW_", "TAUGRAD_")
    return {name: value for name, value in os.environ.items() if not name.startswith(misleading)}


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
def spec_file(tmp_path: Path) -> Callable[[str, str], Path]:
    """Writes a small spec with further lines of YAML."""

    def write(name: str, more: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(f"{SPEC}name: {name}\n{more}\n")
        return path

    return write
