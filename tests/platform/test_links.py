"""What went over each link: as text, and where it is kept."""

import csv
from pathlib import Path

import numpy as np

from taugrad.compressors.bucket.ledger import Links
from taugrad.platform.launching.launch import _keep
from taugrad.platform.launching.run_folder import RunFolder
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking.store import open_client, start_run


def test_links_as_text_have_a_row_for_each_ordered_pair_of_workers():
    messages, nbytes = np.arange(9).reshape(3, 3), 10**12 * np.arange(9).reshape(3, 3)
    rows = list(csv.DictReader(Links(messages, nbytes).to_csv().splitlines()))
    assert list(rows[0]) == ["from", "to", "messages", "bytes"]
    results = {(int(row["from"]), int(row["to"])): (int(row["messages"]), int(row["bytes"])) for row in rows}
    assert results == {
        (i, j): (3 * i + j, 10**12 * (3 * i + j)) for i in range(3) for j in range(3) if i != j
    }
    assert len(rows) == len(results)


def test_a_text_becomes_an_artifact_or_a_file_beside_the_checkpoints(tmp_path, new_store):
    client = open_client(new_store(tmp_path))
    run_id = start_run(client, RunSpec(experiment="links"))
    folder = RunFolder.at(str(tmp_path / "storage"), run_id)
    artifacts = Path(client.get_run(run_id).info.artifact_uri.removeprefix("file://"))
    (artifacts / "links.csv").mkdir(parents=True)  # a folder stands where the file should be
    (notice,) = _keep(client, {"links.csv": "from,to\n", "timeline.json": "[]"}, folder)
    assert Path(client.download_artifacts(run_id, "timeline.json")).read_text() == "[]"
    path = tmp_path / "storage" / run_id / "links.csv"
    assert path.read_text() == "from,to\n"
    assert [file.name for file in path.parent.iterdir()] == ["links.csv"]
    assert notice.startswith("MLflow did not take links.csv (")
    assert notice.endswith(f"it is {path}")
