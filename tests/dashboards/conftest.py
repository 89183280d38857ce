"""One prepared experiment for all tests of this folder that only read it."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taugrad.platform.tracking.store import open_client

sys.path.insert(0, str(Path(__file__).parent))  # the tests' folders are no packages
import mlflow_data


@dataclass(frozen=True)
class Prepared:
    client: Any
    uri: str
    experiment: str
    experiment_id: str
    run_ids: list[str]
    parent: str
    trials: list[str]
    search_experiment_id: str


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, new_store):
    """Ten settings with two seeds each, and a search in an experiment of its own."""
    uri = new_store(tmp_path_factory.mktemp("mlflow"))
    client = open_client(uri)
    run_ids = mlflow_data.write_comparison(client, "compared", seeds=2)
    parent, trials = mlflow_data.write_search(client, "searched", "tau of wgt")
    experiment_ids = [client.get_experiment_by_name(name).experiment_id for name in ("compared", "searched")]
    return Prepared(client, uri, "compared", experiment_ids[0], run_ids, parent, trials, experiment_ids[1])
