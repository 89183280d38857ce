"""Stores that do not answer are said so at once, in one line, before anything starts."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from servers import answering, http
from waiting import GENEROUS_S

from taugrad.platform import exit_codes
from taugrad.platform.deadline import NoAnswer
from taugrad.platform.spec import SpecError
from taugrad.platform.tracking import store
from taugrad.platform.tracking.probe import answering_client, probe
from taugrad.platform.tracking.store import RetryBudget, open_client

NOWHERE = "http://me:secret@127.0.0.1:1"


@pytest.fixture
def silent():
    """A server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


COMMANDS = [
    "train spec.yaml",
    "train --resume nosuchrun",
    "search search.yaml",
    "auto spec.yaml",
    "report digits -o report",
    "dashboard digits",
    "deliver left.jsonl --run 1",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_so_in_one_line(command, said, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    Path("left.jsonl").write_text('{"time": 0, "step": 1, "metrics": {"comm/fraction": 1.0}}\n')
    line = said(command, exit_codes.FAILED if command.startswith("deliver") else exit_codes.WRONG_INPUT)
    assert line.startswith("taugrad: MLFLOW_TRACKING_URI: http://me:***@127.0.0.1:1 cannot be used: ")
    assert ("Connection refused" in line, "secret" in line) == (True, False)


def test_a_silent_server_costs_seconds_and_no_import_of_mlflow(own_folder, silent):
    begun = time.monotonic()
    code = "import sys; from taugrad import cli; c = cli.main(['report', 'e', '-o', 'r']); "
    answer = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(50 + c if 'mlflow' in sys.modules else c)"],
        env=os.environ | {"MLFLOW_TRACKING_URI": f"http://{silent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - begun < GENEROUS_S
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1), answer.stderr
    assert f"http://{silent} cannot be used: no answer within 2 s" in answer.stderr


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "what answers there is not an HTTP server"),
        (http("500 Internal Server Error", "oops"), "it answers 500 Internal Server Error"),
        (http("401 Unauthorized", "who?"), "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        (http("200 OK", "<html>A page</html>"), "cannot be used: "),
        (http("404 Not Found", "<html>A page</html>"), "cannot be used: "),
        (http("200 OK", "{}"), "cannot be used: what answers there is no MLflow server"),
        (http("200 OK"), "cannot be used: what answers there is no MLflow server"),
    ],
)
def test_what_is_no_store_is_refused(said, reason, own_folder, monkeypatch):
    with answering(lambda _: said) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(SpecError) as refused:
            answering_client()
    assert reason in str(refused.value)
    assert str(refused.value).count("\n") == 0


def test_a_database_server_that_is_away_is_refused(own_folder, silent, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://me:secret@{silent}/runs")
    begun = time.monotonic()
    with pytest.raises(SpecError, match=r"postgresql://me:\*\*\*@[\d.:]+/runs cannot be used") as refused:
        answering_client()
    assert time.monotonic() - begun < GENEROUS_S
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("command", ["train spec.yaml", "search search.yaml"])
def test_a_folder_that_cannot_be_written_is_named(command, own_folder, said, monkeypatch):
    monkeypatch.chdir("/proc")  # where root cannot make a file either
    command, spec = command.split()
    line = said(f"{command} {own_folder / spec}")
    assert line.startswith("taugrad: tracking store: /proc/mlflow.db cannot be written (/proc: ")
    assert "the default, as MLFLOW_TRACKING_URI is not set; change to a folder that can be written" in line


@pytest.mark.parametrize("command", ["report x -o r", "dashboard x", "train --resume x"])
def test_where_nothing_was_trained_nothing_is_made(command, own_folder, said):
    assert said(command).startswith(f"taugrad: tracking store: there is no {own_folder}/mlflow.db, the def")


def test_an_unknown_run_and_an_unknown_experiment_are_named(own_folder, new_store, said):
    new_store(own_folder)
    open_client().create_experiment("here")
    for command in ("report there -o r", "dashboard there"):
        line = said(command)
        assert "EXPERIMENT 'there': not in sqlite:///" in line
        assert "there is: Default, here" in line
    assert "--resume nosuchrun: no such run in sqlite:///" in said("train --resume nosuchrun")


def test_a_store_that_goes_away_costs_a_bounded_time_and_is_asked_again(monkeypatch):
    patience, asked = RetryBudget(0.3), []

    def hang() -> None:
        asked.append(True)
        time.sleep(60)

    assert patience(lambda: 1) == 1
    begun = time.monotonic()
    for _ in range(100):
        with pytest.raises(NoAnswer):
            patience(hang)
    assert time.monotonic() - begun < GENEROUS_S
    assert len(asked) == 1
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + store._AGAIN_S)
    monkeypatch.setattr(store, "time", later)
    assert patience(lambda: 1) == 1
    assert patience(lambda: 2) == 2


def test_the_probe_asks_nothing_of_a_server_with_a_certificate_that_it_does_not_know(own_folder):
    with answering(lambda _: b"no TLS") as address:
        with pytest.raises(SpecError):
            probe(address.replace("http:", "https:").replace("127.0.0.1", "127.0.0.1.invalid"))
        probe(address.replace("http:", "https:"))  # MLflow has its own settings for that


@pytest.mark.parametrize("writes", [True, False])
def test_a_file_that_is_no_database_is_refused_before_mlflow_opens_it(tmp_path, monkeypatch, writes):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = tmp_path / "mlflow.db"
    path.touch()
    probe(f"sqlite:///{path}", writes=writes)
    path.write_text("something else")
    with pytest.raises(SpecError, match=r"mlflow\.db is no sqlite database, the default, .*; move it away"):
        probe(f"sqlite:///{path}", writes=writes)
    path.unlink()
    path.mkdir()
    with pytest.raises(SpecError, match="is no sqlite database"):
        probe(f"sqlite:///{path}", writes=writes)


def test_a_store_of_a_kind_that_mlflow_does_not_have_is_refused_at_once():
    with pytest.raises(
        SpecError, match=r"htp://me:\*+@x: MLflow has no store htp://; give an address of http,"
    ):
        probe("htp://me:secret@x")
    for uri in ("databricks", "databricks://profile", "file:///tmp/runs", "relative/folder"):
        probe(uri)
