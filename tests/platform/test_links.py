"""What went over each link: as text, and where it is kept."""

import csv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from taugrad.platform.launching.run_folder import RunFolder
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.traffic import Links
from taugrad.platform.tracking.store import open_client, start_run


def test_links_as_text_have_a_row_for_each_ordered_pair_of_workers():
    messages, nbytes = np.arange(9).reshape(3, 3), 10**12 * np.arange(9).reshape(3, 3)
    rows = list(csv.DictReader(Links(messages, nbytes).to_csv().splitlines()))
    assert list(rows[0]) == ["from", "to", "messages", "bytes"]
    found = {(int(row["from"]), int(row["to"])): (int(row["messages"]), int(row["bytes"])) for row in rows}
    assert found == {(i, j): (3 * i + j, 10**12 * (3 * i + j)) for i in range(3) for j in range(3) if i != j}
    assert len(rows) == len(found)


@pytest.fixture
def kept(tmp_path: Path):
    """A worker's tracker, its run, and the notices that the user gets."""
    from taugrad.platform.launching.job import Job
    from taugrad.platform.launching.worker import _Tracker

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    spec, notices = RunSpec(experiment="links"), []
    client = open_client(uri)
    run_id = start_run(client, spec)
    status = SimpleNamespace(notify=SimpleNamespace(remote=notices.append))
    tracker = _Tracker(Job(spec.model_dump_json(), uri, run_id, str(tmp_path / "storage" / run_id), status))
    yield tracker, client, run_id, notices
    tracker.writer.close(5)


def test_a_text_becomes_an_artifact(kept, tmp_path):
    tracker, client, run_id, notices = kept
    tracker.keep("links.csv", "from,to\n", RunFolder.at(str(tmp_path / "storage"), run_id))
    assert Path(client.download_artifacts(run_id, "links.csv")).read_text() == "from,to\n"
    assert not notices
    assert not (tmp_path / "storage").exists()


def test_a_text_that_the_store_does_not_take_is_kept_and_the_user_told_where(kept, tmp_path):
    tracker, client, run_id, notices = kept
    artifacts = Path(client.get_run(run_id).info.artifact_uri.removeprefix("file://"))
    (artifacts / "links.csv").mkdir(parents=True)  # a folder stands where the file should be
    tracker.keep("links.csv", "from,to\n", RunFolder.at(str(tmp_path / "storage"), run_id))
    path = tmp_path / "storage" / run_id / "links.csv"
    assert path.read_text() == "from,to\n"
    (notice,) = notices
    assert notice.startswith("MLflow did not take links.csv (")
    assert notice.endswith(f"it is {path}")
