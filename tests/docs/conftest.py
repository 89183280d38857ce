"""The site, built once for all of these tests, and what reads its pages."""

import os
import sys
from pathlib import Path

import pytest
from waiting import said_by

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "tests" / "dashboards"), str(Path(__file__).parent)]


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The folder of the built site; a warning is an error there (`strict` in mkdocs.yml)."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder]
    said_by(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder
