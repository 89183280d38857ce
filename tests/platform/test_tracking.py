"""The tracking store: where it is, what a run has in it, and the names of metrics."""

import getpass
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from taugrad.platform.spec import RunSpec
from taugrad.platform.spec.yaml_file import read_yaml
from taugrad.platform.tracking import names, store
from taugrad.platform.tracking.masking import masked, without_login
from taugrad.platform.tracking.record import UNDELIVERED, records_of

mlflow = pytest.importorskip("mlflow")

from mlflow.entities import Metric  # noqa: E402
from mlflow.exceptions import MlflowException  # noqa: E402
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS  # noqa: E402


@pytest.fixture(scope="module")
def database(tmp_path_factory, new_store):
    """In a folder whose name needs quoting."""
    return new_store(tmp_path_factory.mktemp("my runs"))


@pytest.fixture
def client(database, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return store.open_client(database)


@pytest.fixture
def run_id(client):
    return str(client.create_run(store.open_experiment(client, "tests")).info.run_id)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:se/cr:et@host:5432/runs", "postgresql://me:***@host:5432/runs"),
        ("mysql+pymysql://:secret@host/runs", "mysql+pymysql://:***@host/runs"),
        ("(at http://u:p@ss@host:5000/x?a=1)", "(at http://u:***@host:5000/x?a=1)"),
        ("postgresql://host/db?user=me&password=secret&x=1", "postgresql://host/db?user=me&password=***&x=1"),
        ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
        ("sqlite:////tmp/a:b/mlflow.db", "sqlite:////tmp/a:b/mlflow.db"),
    ],
)
def test_passwords_are_masked(text, shown):
    assert masked(text) == shown


def test_links_hold_no_login():
    assert without_login("https://me:secret@host:5000/ml") == "https://host:5000/ml"
    assert without_login("http://127.0.0.1:5000") == "http://127.0.0.1:5000"


def test_a_database_is_locked_without_a_file_that_stays_and_not_for_ever(tmp_path, monkeypatch):
    entered = threading.Event()

    def second() -> None:
        with store._locked(tmp_path / "mlflow.db"):
            entered.set()

    with store._locked(tmp_path / "mlflow.db"):
        thread = threading.Thread(target=second)
        thread.start()
        assert not entered.wait(0.3)
        assert list(tmp_path.iterdir()) == []
    assert entered.wait(10)
    thread.join()
    monkeypatch.setattr(store, "_LOCK_S", 0.1)
    with store._locked(tmp_path / "a.db"), store._locked(tmp_path / "b.db"):
        pass


# The store


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "sqlite:///{cwd}/mlflow.db"),
        (" ", "sqlite:///{cwd}/mlflow.db"),
        ("http://server:5000", "http://server:5000"),
        ("sqlite:////data/runs.db", "sqlite:////data/runs.db"),
        ("sqlite:///runs.db?timeout=5", "sqlite:///{cwd}/runs.db?timeout=5"),
        ("sqlite:///sub/runs.db", "sqlite:///{cwd}/sub/runs.db"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("postgresql://user@host/db", "postgresql://user@host/db"),
    ],
)
def test_a_store_is_an_absolute_path_outside_a_jobs_working_directory(given, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
    monkeypatch.chdir(tmp_path)
    assert store.tracking_uri() == expected.format(cwd=tmp_path)
    job = tmp_path / "session" / "runtime_resources" / "working_dir_files" / "_ray_pkg_0a1b"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert store.tracking_uri() == expected.format(cwd=tmp_path / "home" / ".taugrad")


def test_artifacts_lie_beside_the_database_whatever_the_working_directory(client, database):
    experiment = client.get_experiment(store.open_experiment(client, "Anoosheh: figure 3/4"))
    folder = Path(database.removeprefix("sqlite:///")).parent
    assert experiment.artifact_location == (folder / "mlruns" / "Anoosheh-figure-3-4").as_uri()
    assert store.open_experiment(client, "Anoosheh: figure 3/4") == experiment.experiment_id


def test_a_deleted_experiment_says_how_to_restore_it(client):
    experiment = store.open_experiment(client, "deleted one")
    client.delete_experiment(experiment)
    with pytest.raises(store.TrackingError, match=f"experiments restore --experiment-id {experiment}`"):
        store.open_experiment(client, "deleted one")


def test_a_server_decides_where_artifacts_lie_and_who_creates_an_experiment_first():
    results = [None, SimpleNamespace(lifecycle_stage="active", experiment_id="7")]
    asked: list[tuple[str, str | None]] = []

    def create(name: str, artifact_location: str | None) -> None:
        asked.append((name, artifact_location))
        raise MlflowException("exists", error_code=RESOURCE_ALREADY_EXISTS)

    server: Any = SimpleNamespace(
        tracking_uri="http://server:5000",
        get_experiment_by_name=lambda _: results.pop(0),
        create_experiment=create,
    )
    assert store.open_experiment(server, "raced") == "7"
    assert asked == [("raced", None)]


def test_a_run_carries_its_spec(client, tmp_path):
    spec = RunSpec(name="first", experiment="started", paper="anoosheh", seed=5)
    run_id = store.start_run(client, spec, tags={names.TAG_CHECKPOINTS: "somewhere"})
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("RUNNING", "first")
    assert run.data.params == spec.flat()
    assert run.data.params["seed"] == "5"
    tags = {"spec_hash": spec.fingerprint(), "paper": "anoosheh", "checkpoints": "somewhere"}
    expected = {f"taugrad.{name}": value for name, value in tags.items()}
    expected |= {"mlflow.source.name": "taugrad", "mlflow.user": getpass.getuser()}
    assert expected.items() <= run.data.tags.items()
    # The working directory is an empty folder here, no repository.
    assert "taugrad.git_commit" not in run.data.tags
    folder = client.download_artifacts(run_id, "spec.yaml", str(tmp_path))
    assert RunSpec.model_validate(yaml.safe_load(Path(folder).read_text())) == spec
    store.finish_run(client, run_id, "FINISHED")
    assert client.get_run(run_id).info.status == "FINISHED"


def test_a_run_in_a_repository_knows_its_commit(client, tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True, cwd=tmp_path)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True, cwd=tmp_path)
    log = subprocess.run(
        [*git, "log", "--format=%H"], check=True, cwd=tmp_path, capture_output=True, text=True
    )
    run = client.get_run(store.start_run(client, RunSpec(experiment="started")))
    assert run.data.tags["taugrad.git_commit"] == log.stdout.strip()
    monkeypatch.setenv("PATH", "/nowhere")  # without git a run starts all the same
    run = client.get_run(store.start_run(client, RunSpec(experiment="started")))
    assert "taugrad.git_commit" not in run.data.tags


def test_many_and_long_params_are_accepted(client, monkeypatch):
    many = {f"p{i}": "x" * (7000 if i == 3 else i % 5) for i in range(250)}
    monkeypatch.setattr(RunSpec, "flat", lambda _: many)
    params = client.get_run(store.start_run(client, RunSpec(experiment="started"))).data.params
    assert params == many | {"p3": "x" * 6000}


def test_users_own_keys_are_params_that_mlflow_takes(client):
    fields = {
        "experiment": "started",
        "compressor": "strom(layers(0.02, patterns={'*.bias': 0.005, '?.bias': 0.01}))",
        "training": {"until": {"top-5 (%)": 95}},
    }
    params = client.get_run(store.start_run(client, RunSpec.model_validate(fields))).data.params
    assert params["compressor.tau.patterns._.bias"] in ("0.005", "0.01")
    assert params["training.until.top-5 ___"] == "95.0"


def test_a_run_that_could_not_begin_is_not_left_running(client, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(type(client), "log_text", full)
    with pytest.raises(OSError, match="no space left"):
        store.start_run(client, RunSpec(experiment="unlucky"))
    runs = client.search_runs([store.open_experiment(client, "unlucky")])
    assert [run.info.status for run in runs] == ["FAILED"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("trial 4: wgt(tau=0.15997382191)", "trial 4: wgt(tau=0.16)"),
        ("a(tau=1.4116267167542306e-05) | b", "a(tau=1.412e-05) | b"),
        ("wgt(tau=1e-05)", "wgt(tau=1e-05)"),
        ("strom(tau=0.001) of 100000", "strom(tau=0.001) of 100000"),
        ("step 12345.678", "step 12346"),
        ("v1.2.3456, x0.12345", "v1.2.3456, x0.12345"),
    ],
)
def test_numbers_in_names_are_short(name, read):
    assert names.shown(name) == read


@pytest.mark.parametrize("layer", ["fc1.weight", "blocks.0.conv(1)", "größe", "a|b$c"])
def test_mlflow_accepts_the_metric_of_any_layer(layer, client, run_id):
    name = names.layer_metric(layer, "grad_p99")
    assert (name == f"layer/{layer}/grad_p99") == (layer == "fc1.weight")
    client.log_batch(run_id, metrics=[Metric(name, 1.0, 1, 0)])
    assert [point.value for point in client.get_metric_history(run_id, name)] == [1.0]


def test_what_a_job_shows_names_its_store(tmp_path, monkeypatch):
    command, uri = "taugrad report digits -o report", "sqlite:////home/a b/mlflow.db"
    assert store.to_copy(command, uri) == command
    job = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    assert store.to_copy(command, uri) == f"MLFLOW_TRACKING_URI='{uri}' {command}"
    assert store.to_copy(command, "https://me:secret@host") == command


def test_a_command_has_the_programs_path_where_the_shell_does_not_find_it(tmp_path, monkeypatch):
    command = "taugrad report a -o report && taugrad report 'taugrad runs' -o report"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / ".venv/bin/taugrad"), "train"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    there = ".venv/bin/taugrad report"
    assert store.to_copy(command, "uri") == f"{there} a -o report && {there} 'taugrad runs' -o report"
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert store.to_copy(command, "uri") == command


def test_runs_are_kept_in_a_folder_of_any_name(tmp_path, monkeypatch):
    folder = tmp_path / 'it\'s "here" :now'
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = store.open_client()
    run_id = store.start_run(client, RunSpec(name="1e3", experiment="quoted"))
    assert client.get_run(run_id).info.run_name == "1e3"
    (kept,) = (folder / "mlruns").rglob("spec.yaml")
    assert read_yaml(kept, RunSpec)["name"] == "1e3"
    assert (folder / "mlflow.db").exists()


def test_how_to_deliver_is_said_as_a_shell_reads_it(tmp_path):
    from pyarrow.fs import LocalFileSystem

    from taugrad.platform.launching.run_folder import RunFolder
    from taugrad.platform.launching.undelivered import end_in_store

    place = str(tmp_path / 'it\'s "here" now')
    folder = RunFolder(LocalFileSystem(), place, "r", place)
    held = SimpleNamespace(is_ours=lambda: True)
    (notice,) = end_in_store(object(), "r", "FINISHED", folder, held)  # which no store answers
    command = notice.partition("again: ")[2]
    assert shlex.split(command) == ["taugrad", "deliver", f"{place}/{UNDELIVERED}"]


def test_an_end_does_not_replace_metrics_that_cannot_be_read(tmp_path, monkeypatch):
    from taugrad.platform.launching.run_folder import RunFolder
    from taugrad.platform.launching.undelivered import end_in_store

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = RunFolder.at(str(tmp_path), "r")
    waiting = folder.keep_text(UNDELIVERED, "metrics\n")

    class Slow(RunFolder):
        def text(self, name: str) -> str:
            raise OSError("it has not answered for 30 s")

    held = SimpleNamespace(is_ours=lambda: True)
    (notice,) = end_in_store(object(), "r", "FINISHED", Slow.at(str(tmp_path), "r"), held)
    assert Path(waiting).read_text() == "metrics\n"
    place = Path(shlex.split(notice.partition("when it answers again: ")[2])[-1])
    assert place == tmp_path / "home" / ".taugrad" / "not-stored" / "r" / UNDELIVERED
    assert records_of(place.read_text(), "end")[-1].ended == "FINISHED"
