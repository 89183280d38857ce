import sys
from pathlib import Path

import pytest

from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.reading import read_spec

sys.path.insert(0, str(Path(__file__).parent))  # the tests' folders are no packages


@pytest.fixture
def read(tmp_path):
    """Reads a spec from text, with command-line overrides."""

    def read_text(text: str, *overrides: str) -> RunSpec:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return read_spec(path, overrides)

    return read_text
