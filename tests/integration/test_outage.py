"""The tracking server goes away in mid-run: training goes on, and nothing is lost."""

import subprocess

import pytest
from benchmarks.platform.faults.commands import family, named
from benchmarks.platform.faults.mlflow_server import Server
from mlflow.tracking import MlflowClient
from specs import write_digits
from waiting import said_by, until

pytestmark = pytest.mark.ray

EPOCHS, PER_EPOCH = 24, 36
SPEC = {
    "model": {"kind": "mlp", "widths": [256, 256]},
    "training": {"epochs": EPOCHS, "batch_size": 40},
    "compressor": "qgt(0.001)",
    "workers": {"cpus": 0.5, "max_restarts": 1},
}


@pytest.fixture
def server(tmp_path, environment):
    started = Server(tmp_path, environment)
    started.start()
    yield started
    started.kill()


@pytest.mark.long
def test_training_outlives_the_store_and_its_metrics_are_delivered_later(
    server, tmp_path, environment, command
):
    spec = write_digits(tmp_path, "outage", **SPEC)
    variables = environment | {"MLFLOW_TRACKING_URI": server.uri}
    output = tmp_path / "output.txt"
    with output.open("w") as log:
        process = subprocess.Popen(
            [*command, "train", spec], cwd=tmp_path, env=variables, stdout=log, stderr=log
        )

    def wait_for(epoch: int) -> None:
        said = f"epoch {epoch:2}/{EPOCHS}"
        until(lambda: said in output.read_text(), output.read_text, goes_on=lambda: process.poll() is None)

    try:
        wait_for(3)
        server.kill()
        # A worker that starts again meanwhile cannot ask what is stored, and repeats what is.
        named(family(process.pid), "RayTrainW")[0].kill()
        wait_for(EPOCHS)
        # A minute is promised; the server was away before the end.
        assert process.wait(240) == 0, output.read_text()
    finally:
        process.kill()
    said = output.read_text()
    assert "MLflow does not answer" in said
    assert 1 <= said.count("training goes on") <= 2  # told by each start of the worker
    assert "outage" in said.split("accuracy")[-1]  # the table is shown all the same

    (file,) = (tmp_path / "taugrad-runs").glob("*/undelivered-metrics.jsonl")
    assert f"taugrad deliver {file}\n" in said
    server.start()
    client, run_id = MlflowClient(server.uri), file.parent.name
    assert client.get_run(run_id).info.status == "RUNNING"
    said = said_by([*command, "deliver", file], env=variables, cwd=tmp_path)
    assert "metrics delivered to run" in said
    assert client.get_run(run_id).info.status == "FINISHED"
    steps = [point.step for point in client.get_metric_history(run_id, "comm/fraction")]
    assert sorted(steps) == list(range(1, EPOCHS * PER_EPOCH + 1))
    wire = sum(point.value for point in client.get_metric_history(run_id, "comm/wire_bytes"))
    assert wire == pytest.approx(client.get_run(run_id).data.metrics["total/wire_gb"] * 1e9)
