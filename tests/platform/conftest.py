import os
import sys
import time
from pathlib import Path

import pytest
from waiting import GENEROUS_S

from taugrad import cli
from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.reading import read_spec

sys.path.insert(0, str(Path(__file__).parent))  # the tests' folders are no packages

SPEC = "data: {kind: digits}\nmodel: {kind: mlp, widths: [8]}\ncompressor: {kind: wgt, tau: 0.1}\n"


@pytest.fixture
def read(tmp_path):
    """Reads a spec from text, with command-line overrides."""

    def read_text(text: str, *overrides: str) -> RunSpec:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return read_spec(path, overrides)

    return read_text


@pytest.fixture
def own_folder(tmp_path, monkeypatch):
    """The working folder, with a spec and a search's, in an environment that says nothing."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MLFLOW_", "RAY_", "TAUGRAD_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "search.yaml").write_text(SPEC.replace("0.1", "{log: [1e-3, 1e-1]}"))
    return tmp_path


@pytest.fixture
def said(own_folder, capsys):
    """What a command says in one line, which is refused soon and leaves no file."""

    def give(command: str, code: int = cli.WRONG_INPUT) -> str:
        before, begun = set(own_folder.iterdir()), time.monotonic()
        assert cli.main(command.split()) == code
        assert time.monotonic() - begun < GENEROUS_S
        assert set(own_folder.iterdir()) == before
        (line,) = capsys.readouterr().err.splitlines()
        return line

    return give
