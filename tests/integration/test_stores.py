"""Stores that a team uses: MLflow on PostgreSQL with artifacts through its server, checkpoints in S3.

All of it is started once, by the lines of docs/stores.md, and one Ray runs the commands one after the other.
"""

import csv
import io
import math
import re
import threading
import urllib.request
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import pytest
import torch
from benchmarks.platform.faults.commands import HostedCommand
from benchmarks.platform.faults.comparing import differences
from benchmarks.platform.faults.mlflow_server import Server
from commands_on_ray import OneRay, kill_a_worker
from objects import BUCKET, Objects
from postgres import Postgres
from waiting import TIMEOUT_S, until

from taugrad import cli
from taugrad.platform.exit_codes import OK
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names
from taugrad.platform.tracking.journal import MetricsJournal
from taugrad.platform.tracking.store import finish_run, open_client, start_run

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]
ITERATIONS = 1200
TRAINED = """
experiment: stores
name: {name}
data: {{kind: synthetic, train_examples: 3200}}
model: {{kind: mlp, widths: [64]}}
training: {{epochs: 12, batch_size: 32, optimizer: {{lr: 0.02}}}}
compressor: {{kind: bgt, tau: 5e-3}}
sync: {{mode: gradients, pattern: sharded}}
checkpoint: {{interval: 60}}
workers: {{max_restarts: 0, cpus: 0.5}}
storage: {storage}
"""
WRITERS, STEPS, HALF = 2, 600, 350


def line_of_docs(beginning: str) -> str:
    """The command of docs/stores.md that begins so."""
    lines = re.sub(r"\\\n *", "", (ROOT / "docs" / "stores.md").read_text()).splitlines()
    (line_,) = [line for line in lines if line.startswith(beginning)]
    return line_


class Team:
    """What a team has, in a folder."""

    def __init__(self, folder: Path, environment: dict[str, str], stack: ExitStack) -> None:
        """Starts a database and a server; what ends them, and what else it starts, goes on the stack."""
        self.folder, self.home, self.artifacts = folder, folder / "home", folder / "artifacts"
        self.home.mkdir()
        self._stack = stack
        self.postgres = Postgres()
        self._stack.callback(self.postgres.remove)
        server = Server(folder, environment | {"HOME": str(self.home)})
        self.uri = server.uri
        self._environment = {**server.environment, "MLFLOW_TRACKING_URI": self.uri}
        line = line_of_docs("mlflow server ").replace("5000", str(server.port))
        line = re.sub(r"postgresql\S+", self.postgres.uri, line)
        server.arguments = line.replace("/shared/mlflow", str(self.artifacts)).split()[1:]
        self._stack.callback(server.kill)
        server.start()
        # Its first answer takes long: it opens the database then, which commands do not wait for.
        until(self._answers, (folder / "server.txt").read_text)

    @cached_property
    def objects(self) -> Objects:
        """The S3, which only some tests need."""
        started = Objects()
        self._stack.callback(started.stop)
        return started

    @cached_property
    def commands(self) -> OneRay:
        """Commands on a Ray whose workers have the team's keys."""
        started = OneRay(self.folder, self.objects.variables | self._environment)
        self._stack.callback(started.close)
        return started

    def _answers(self) -> bool:
        asked = f"{self.uri}/api/2.0/mlflow/experiments/get?experiment_id=0"
        try:
            return bool(urllib.request.urlopen(asked, timeout=60))
        except OSError:
            return False

    def runs(self, *arguments: str, code: int = 0) -> str:
        """Runs a command; what it says."""
        ended, said = self.commands(*arguments)
        assert ended == code, said
        return said

    def run_id(self, name: str) -> str:
        """Of the run of a name, as the database has it."""
        ((run_id,),) = self.postgres.rows("SELECT run_uuid FROM runs WHERE name = %s", name)
        return run_id

    def points(self, run_id: str) -> dict[str, list[tuple[int, float]]]:
        """All of a run's metrics, as the database has them, by name and in the order of their steps."""
        results: dict[str, list[tuple[int, float]]] = {}
        query = "SELECT key, step, value FROM metrics WHERE run_uuid = %s ORDER BY key, step"
        for key, step, value in self.postgres.rows(query, run_id):
            results.setdefault(key, []).append((step, value))
        return results

    def manifests(self, run_id: str = "") -> list[str]:
        """Of the checkpoints in the bucket."""
        return [name for name in self.objects.names(f"runs/{run_id}") if name.endswith("manifest.json")]

    def await_checkpoints(self, command: HostedCommand, name: str, count: int) -> str:
        """Waits until a run has so many checkpoints in the bucket; its id."""
        query = "SELECT run_uuid FROM runs WHERE name = %s"
        return until(
            lambda: [
                run_id
                for (run_id,) in self.postgres.rows(query, name)
                if len(self.manifests(run_id)) >= count
            ],
            lambda: command.said,
            goes_on=lambda: command.runs,
        )[0]

    def state(self, run_id: str) -> dict:
        """What a run has come to: the states in its last checkpoint in the bucket, timings apart."""
        folder = max(name.rpartition("/")[0] for name in self.manifests(run_id))
        assert folder.endswith(f"iteration_{ITERATIONS:08d}")
        files = ("shared.pt", "worker_00000.pt", "worker_00001.pt")
        read = {file: self.objects.read(f"{folder}/{file}") for file in files}
        return {name: torch.load(io.BytesIO(data), weights_only=True) for name, data in read.items()}


@pytest.fixture(scope="module")
def team(tmp_path_factory, environment):
    with ExitStack() as stack:
        yield Team(tmp_path_factory.mktemp("team"), environment, stack)


def assert_whole(points: dict[str, list[tuple[int, float]]], last: int) -> None:
    """Each step of an iteration's metrics is there, once."""
    for key in ("comm/fraction", "train/loss", "comm/wire_bytes"):
        assert [step for step, _ in points[key]] == list(range(1, last + 1)), key


def write_a_run(team: Team, run_id: str, told: list[str]) -> None:
    """Metrics as a worker writes them, which is started a second time and repeats what it had written."""
    for steps in (range(1, HALF + 1), range(HALF // 2, STEPS + 1)):
        journal = MetricsJournal(team.uri, run_id, told.append)
        for step in steps:
            odd = {7: math.nan, 8: math.inf}.get(step, 1 / step)
            journal.log(step, {"comm/fraction": step / 3, "train/loss": odd, "comm/wire_bytes": 1e15 + step})
        journal.log(STEPS, {names.EVAL_ACCURACY: 0.9, names.TOTAL_WIRE_GB: 1e-3 * int(run_id[:6], 16)})
        assert journal.close(TIMEOUT_S) == []
    finish_run(open_client(team.uri), run_id, "FINISHED")


def write_at_once(team: Team) -> list[str]:
    """Several runs, at the same time; their ids."""
    client, told = open_client(team.uri), list[str]()
    runs = [start_run(client, RunSpec(experiment="written", name=f"run {i}")) for i in range(WRITERS)]
    threads = [threading.Thread(target=write_a_run, args=(team, run_id, told)) for run_id in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert told == []
    return runs


@pytest.fixture(scope="module")
def written(team):
    return write_at_once(team)


def test_what_runs_write_at_once_is_there_once(team, written):
    for run_id in written:
        points = team.points(run_id)
        assert_whole(points, STEPS)
        assert dict(points["comm/wire_bytes"]) == {step: 1e15 + step for step in range(1, STEPS + 1)}
        history = open_client(team.uri).get_metric_history(run_id, "train/loss")
        odd = {point.step: point.value for point in history if point.step in {7, 8}}
        assert math.isnan(odd[7])
        assert odd[8] > 1e308


def test_reports_say_what_the_database_holds(team, written, monkeypatch, capsys):
    monkeypatch.chdir(team.folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", team.uri)
    for arguments in (["report", "written", "-o", "report"], ["dashboard", "written"]):
        assert cli.main(arguments) == OK
    assert f"{team.uri}/#/experiments/" in capsys.readouterr().out
    with (team.folder / "report" / "runs.csv").open() as file:
        shown = sorted(float(row["wire_mb"]) for row in csv.DictReader(file))
    query = """SELECT value FROM latest_metrics JOIN runs USING (run_uuid) JOIN experiments
        USING (experiment_id) WHERE experiments.name = 'written' AND key = 'total/wire_gb' ORDER BY value"""
    assert shown == pytest.approx([1000 * value for (value,) in team.postgres.rows(query)])
    assert len(shown) == WRITERS


@pytest.fixture(scope="module")
def outlived(team):
    """A run during which the database goes away and comes back, and the keys of the bucket expire."""
    (team.folder / "outlived.yaml").write_text(TRAINED.format(name="outlived", storage=f"s3://{BUCKET}/runs"))
    command = team.commands.begin("train", "outlived.yaml")
    run_id = team.await_checkpoints(command, "outlived", 1)
    team.objects.refuse()
    team.postgres.stop()
    assert command.wait_for("MLflow does not answer"), command.said
    team.postgres.start()
    assert command.wait() == 0, command.said
    assert re.search(r"MLflow answers again: [\d,]+ metrics delivered", command.said)
    return run_id, command.said.splitlines()


@pytest.mark.long
def test_a_database_that_goes_away_leaves_no_hole(team, outlived):
    run_id, _ = outlived
    assert_whole(team.points(run_id), ITERATIONS)
    kept = {path.name for path in team.artifacts.glob(f"*/{run_id}/artifacts/*")}
    assert {"links.csv", "timeline.json", "spec.yaml"} <= kept


@pytest.fixture(scope="module")
def whole(team, outlived):
    """The same run, when the checkpoint that the bucket did not take is delivered."""
    run_id, notices = outlived
    kept = team.home / ".taugrad" / "not-stored" / run_id / f"iteration_{ITERATIONS:08d}"
    (line,) = [notice for notice in notices if f"iteration {ITERATIONS} was not stored" in notice]
    assert f"in s3://{BUCKET}/runs/{run_id} (" in line
    assert "(ACCESS_DENIED)); training goes on" in line
    assert line.endswith(f"taugrad deliver {kept}")
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]  # those before made room
    said = team.runs("deliver", str(kept), code=1)
    assert re.search(r"^taugrad: not delivered: .*\(ACCESS_DENIED\); .* is kept$", said, re.M)
    team.objects.allow()
    for _ in range(2):  # again changes nothing
        said = team.runs("deliver", str(kept))
        assert f"is in s3://{BUCKET}/runs/{run_id}, where --resume finds it" in said
    return run_id


@pytest.mark.long
def test_a_run_that_is_killed_goes_on_from_the_bucket(team, whole):
    (team.folder / "killed.yaml").write_text(TRAINED.format(name="killed", storage=f"s3://{BUCKET}/runs"))
    command = team.commands.begin("train", "killed.yaml")
    run_id = team.await_checkpoints(command, "killed", 2)
    kill_a_worker(command)
    assert command.wait() == 1, command.said
    assert f"--resume {run_id}" in command.said

    # An object is damaged.
    newest, before = sorted(team.manifests(run_id), reverse=True)[:2]
    name = newest.replace("manifest.json", "worker_00001.pt")
    data = bytearray(team.objects.read(name))
    data[len(data) // 2] ^= 4
    team.objects.write(name, bytes(data))

    said = team.runs("train", "--resume", run_id)
    damaged, good = (path.split("/")[2] for path in (newest, before))
    assert f"checkpoint not used: {damaged}: worker_00001.pt is damaged: its SHA-256 is not that" in said
    assert f"going on from {good}" in said
    assert list(differences(team.state(run_id), team.state(whole))) == []
    points, others = team.points(run_id), team.points(whole)
    assert_whole(points, ITERATIONS)
    for key in others.keys() - {"total/seconds"}:
        if not key.startswith(("time/", "net/")):
            assert points[key] == others[key], key
