"""What leaves this folder with a job, as Ray packs it; nothing is uploaded."""

import logging
import socket
from types import SimpleNamespace
from zipfile import ZipFile

import pytest
from ray._private.runtime_env.packaging import _zip_files
from ray.job_submission import JobSubmissionClient

from taugrad.platform.launching.driver import submit as submitting
from taugrad.platform.places import RUNS, output_folder
from taugrad.platform.tracking import store


def packed(excludes: list[str]) -> set[str]:
    """The files of this folder that Ray would send."""
    _zip_files(".", excludes, "../package.zip", include_gitignore=True, logger=logging.getLogger())
    with ZipFile("../package.zip") as package:
        return {name for name in package.namelist() if not name.endswith("/")}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's, without a .gitignore."""
    place = tmp_path / "work"
    place.mkdir()
    monkeypatch.chdir(place)
    (place / "spec.yaml").write_text("name: x")
    return place


def test_what_runs_have_written_is_not_sent(folder):
    (folder / "mlflow.db").touch()
    assert store._artifacts(SimpleNamespace(tracking_uri=f"sqlite:///{folder}/mlflow.db"), "digits")  # type: ignore[arg-type]
    for made in (output_folder(folder / RUNS), output_folder(folder / "other" / "runs"), folder / "mlruns"):
        (made / "run").mkdir()
        (made / "run" / "worker.pt").write_text("large")
    assert packed([]) == {"spec.yaml", "mlflow.db"}  # `ray job submit`
    (folder / RUNS / ".gitignore").unlink()  # an earlier taugrad's
    assert packed(submitting._NEVER_SHIPPED) == {"spec.yaml"}


def test_a_users_folder_stays_as_it_is(folder):
    (folder / "mine").mkdir()
    assert output_folder(folder / "mine") == folder / "mine"
    assert list((folder / "mine").iterdir()) == []
    (folder / RUNS).mkdir()
    (folder / RUNS / ".gitignore").write_text("!figures")
    output_folder(folder / RUNS)
    assert (folder / RUNS / ".gitignore").read_text() == "!figures"
    (folder / "file").touch()
    output_folder(folder / "file" / "runs")  # whoever writes there says what is wrong


def test_a_job_server_that_hangs_is_not_waited_for(folder, monkeypatch, capsys):
    monkeypatch.setattr("taugrad.platform.launching.driver.ray_internals.CALL_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert submitting._submit(address, "taugrad train spec.yaml", {}) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"taugrad: {address} did not accept the job: ")
    assert "timed out" in line


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Request failed with status code 413: Maximum request body\nsize exceeded."),
        ValueError("Package size (600.00MiB) exceeds the maximum size of 512.00MiB."),
    ],
)
def test_a_folder_that_is_too_large_is_named(error, folder, monkeypatch, capsys):
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(JobSubmissionClient, "__init__", lambda *_: None)
    monkeypatch.setattr(JobSubmissionClient, "submit_job", refuse)
    assert submitting._submit("http://127.0.0.1:1", "taugrad train spec.yaml", {}) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("taugrad: http://127.0.0.1:1 did not accept the job: ")
    assert line.endswith("too large to send: name in .gitignore what the job does not need")
