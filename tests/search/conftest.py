"""Shared by the search's tests."""

import pytest

from taugrad.search.journal import SearchJournal
from taugrad.search.progress import SearchProgress
from taugrad.search.reading import read_search

SPEC = """
data: {kind: digits}
model: {kind: mlp}
training: {epochs: 2}
compressor: {kind: {choice: [wgt, bgt]}, tau: {log: [1e-5, 1e-1]}}
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts the search of the test, or starts it again."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "find.yaml").write_text(SPEC)

    def start(*overrides: str) -> SearchProgress:
        search = read_search(tmp_path / "find.yaml", overrides)
        return SearchProgress(search, SearchJournal(tmp_path / "journal.jsonl"))

    return start


@pytest.fixture
def uri(new_store, tmp_path, monkeypatch):
    uri = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri
