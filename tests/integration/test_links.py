"""links.csv, as a user finds it among a run's artifacts."""

import csv
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

pytestmark = pytest.mark.ray

SYNC = {
    "real": "{mode: sharded}",
    "simulated": "{mode: simulated, of: {mode: sharded}}",
    "hooked": "{mode: allgather}",
}
WORKERS = 2


@pytest.fixture
def trained(taugrad, spec_file, tmp_path: Path) -> tuple[MlflowClient, dict[str, str]]:
    """The store, and run ids by name."""
    method = f"compressor: strom(density(0.02)) | golomb_rice\nworkers: {{count: {WORKERS}}}"
    files = [spec_file(name, f"sync: {sync}\n{method}") for name, sync in SYNC.items()]
    done = taugrad("train", *(str(file) for file in files))
    assert done.returncode == 0, done.stdout + done.stderr
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("trial")
    runs = client.search_runs([experiment.experiment_id])
    return client, {run.info.run_name: run.info.run_id for run in runs}


def test_links_are_an_artifact_whose_sums_are_the_metrics(trained, tmp_path):
    client, runs = trained
    texts = {}
    for name in ("real", "simulated"):
        folder = tmp_path / name
        folder.mkdir()
        texts[name] = Path(client.download_artifacts(runs[name], "links.csv", str(folder))).read_text()
        rows = list(csv.DictReader(texts[name].splitlines()))
        assert [(row["from"], row["to"]) for row in rows] == [("0", "1"), ("1", "0")]
        received = sum(int(row["bytes"]) for row in rows)
        total = client.get_run(runs[name]).data.metrics["total/received_gb"]
        assert received == pytest.approx(1e9 * total, abs=0.5)
        history = client.get_metric_history(runs[name], "comm/messages")
        assert sum(int(row["messages"]) for row in rows) == sum(int(point.value) for point in history)
    assert texts["real"] == texts["simulated"]
    assert "links.csv" not in [each.path for each in client.list_artifacts(runs["hooked"])]
