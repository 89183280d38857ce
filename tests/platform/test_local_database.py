"""A project's folder that was moved or copied: runs are found beside the database that names them."""

import shutil
import sqlite3
from pathlib import Path

import pytest
from mlflow.tracking._tracking_service import utils

from taugrad.platform import doctor
from taugrad.platform.launching.driver import preflight
from taugrad.platform.launching.driver import train as command
from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.run import PublishConfig
from taugrad.platform.tracking import names, store
from taugrad.platform.tracking.local_database import locations

DIGITS = {"experiment": "a %# b", "data": {"kind": "digits"}, "workers": {"cpus": 0.5}}


@pytest.fixture
def project(tmp_path, new_store, monkeypatch):
    """A folder with a run, its artifacts and its checkpoints."""
    folder = tmp_path / "100% ü"
    folder.mkdir()
    new_store(folder)
    monkeypatch.setattr(command, "is_local", lambda: True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = store.open_client()
    checkpoints = folder / "taugrad-runs" / "run"
    checkpoints.mkdir(parents=True)
    spec = RunSpec.model_validate(DIGITS)
    run = store.start_run(client, spec, tags={names.TAG_CHECKPOINTS: str(checkpoints), "other": str(folder)})
    return folder, run, spec


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("move", [shutil.move, shutil.copytree])
def test_runs_are_found_beside_the_database(move, project, tmp_path, monkeypatch, caplog):
    folder, run, spec = project
    there = tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path)
    move(folder, there)
    before = contents(folder)
    monkeypatch.chdir(there)
    utils._artifact_repos_cache.clear()  # MLflow's, of the process: another one would begin without
    client = store.open_client()
    assert f"was in {folder}" in caplog.text
    found = command._spec_of(client, run)
    assert found == spec.model_copy(update={"storage": there / "taugrad-runs"})
    assert client.get_run(run).data.tags["other"] == str(folder)
    store.keep_spec(client, run, spec)
    other = store.start_run(client, spec)
    assert client.get_run(other).info.artifact_uri.startswith(there.as_uri())
    assert contents(folder) == before  # nothing is made anew, or changed, where it was
    caplog.clear()
    store.open_client()
    assert caplog.text == ""


def test_what_is_elsewhere_on_purpose_stays(tmp_path, new_store, monkeypatch):
    new_store(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = store.open_client()
    for name, place in {"a": "s3://bucket/mlruns/a", "b": "file:///data/mlruns/b", "c": "file:///x"}.items():
        client.create_experiment(name, artifact_location=place)
    (tmp_path / "mlruns" / "a").mkdir(parents=True)
    before = locations(tmp_path / "mlflow.db")
    store.open_client()
    assert locations(tmp_path / "mlflow.db") == before


def test_a_link_to_the_folder_is_no_move(project, tmp_path, monkeypatch, caplog):
    folder, *_ = project
    (tmp_path / "link").symlink_to(folder)
    before = locations(folder / "mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/link/mlflow.db")
    store.open_client()
    assert locations(folder / "mlflow.db") == before
    assert caplog.text == ""


def test_a_run_goes_on_publishing_where_it_did(project, tmp_path, monkeypatch):
    folder, _, spec = project
    spec = spec.model_copy(update={"publish": PublishConfig(path="weights")})
    (folder / "weights").mkdir()
    client = store.open_client()
    run = store.start_run(client, spec, tags={names.TAG_PUBLISHED: str(folder / "weights")})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert command._spec_of(client, run).publish.path == str(folder / "weights")
    monkeypatch.chdir(tmp_path)
    shutil.move(folder, tmp_path / "there")
    monkeypatch.chdir(tmp_path / "there")
    utils._artifact_repos_cache.clear()
    found = command._spec_of(store.open_client(), run)
    assert found.publish.path == str(tmp_path / "there" / "weights")


def test_what_is_left_behind_is_refused_in_a_line(project, tmp_path, monkeypatch):
    folder, run, _ = project
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path / "new")
    shutil.copy(folder / "mlflow.db", ".")
    shutil.copytree(folder / "mlruns", "mlruns")
    shutil.rmtree(folder)
    with pytest.raises(SpecError, match=r"its checkpoints were in .* is not there; bring it back, or"):
        command._spec_of(store.open_client(), run)
    (tmp_path / "new" / "taugrad-runs" / run).mkdir(parents=True)  # with another store, that was not moved
    assert command._spec_of(store.open_client(), run).storage == tmp_path / "new" / "taugrad-runs"
    shutil.rmtree("mlruns")
    with pytest.raises(SpecError, match=r"has no spec\.yaml; bring it back"):
        command._spec_of(store.open_client(), run)


def test_a_spec_of_another_version_is_refused_in_a_line(project):
    folder, run, _ = project
    (kept,) = folder.rglob("spec.yaml")
    kept.write_text("wrokers: {count: 2}\n")
    with pytest.raises(SpecError, match=r"^run \w+: wrokers: no such field; did you mean workers\?$"):
        command._spec_of(store.open_client(), run)


def test_an_experiment_made_through_a_server_is_refused_before_anything_starts(project):
    store.open_client().create_experiment("served", artifact_location="mlflow-artifacts:/1")
    spec = RunSpec.model_validate(DIGITS | {"experiment": "served"})
    said = r"experiment = served: it was made through a server, .*mlflow-artifacts:/1.*; set MLFLOW_TRACK"
    with pytest.raises(SpecError, match=said):
        preflight.check(spec, "spec.yaml", local=True)
    (wrong,) = [finding for finding in doctor._mlflow() if finding.state == "wrong"]
    assert wrong.detail.startswith("experiment served: it was made through a server")
    assert "mlflow server --backend-store-uri sqlite:///" in wrong.remedy


def test_a_file_that_is_no_database_says_nothing_of_locations(tmp_path):
    (tmp_path / "mlflow.db").write_text("no database" * 99)
    assert locations(tmp_path / "mlflow.db") == {}
    sqlite3.connect(tmp_path / "empty.db").close()
    assert locations(tmp_path / "empty.db") == locations(tmp_path / "absent.db") == {}
