"""The same run as a Ray job, on a cluster that wants a token; Ray's own command is in test_readme_cluster."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from taugrad import cli
from taugrad.platform.ports import free_port
from taugrad.platform.spec.reading import read_spec

pytestmark = pytest.mark.ray

TOKEN = "0123456789abcdef0123456789abcdef"
SEARCH = """
experiment: found
data: {kind: digits}
model: {kind: mlp, widths: [16]}
training: {epochs: 1, batch_size: 128}
sync: {mode: simulated}
compressor: {kind: wgt, tau: {log: [1e-3, 1e-1]}}
workers: {cpus: 0.5}
search: {trials: 2}
"""
SPEC = """
experiment: jobs
name: {name}
data: {{kind: digits}}
model: {{kind: mlp, widths: [16]}}
training: {{epochs: 1, batch_size: 128}}
compressor: {{kind: qgt, tau: 1e-2}}
workers: {{cpus: 0.5}}
"""


def free_ports(count: int) -> set[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return ports


@pytest.fixture(scope="module")
def head(tmp_path_factory, environment):
    """A Ray head of this test's own: its job server's address, and the environment to reach it with."""
    folder = tmp_path_factory.mktemp("head")
    (folder / ".ray").mkdir()
    (folder / ".ray" / "auth_token").write_text(TOKEN)
    port, dashboard, client, agent, runtime_agent, metrics = free_ports(6)
    variables = environment | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "HOME": str(folder),  # jobs without a tracking URI keep their runs there; it has the token
        "RAY_AUTH_MODE": "token",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    command = [
        *("ray", "start", "--head", "--block", "--disable-usage-stats", "--num-cpus=2"),
        *("--node-ip-address=127.0.0.1", f"--port={port}", f"--ray-client-server-port={client}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        *(f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}"),
        f"--runtime-env-agent-port={runtime_agent}",
        f"--object-store-memory={256 * 2**20}",
    ]
    ray = shutil.which("ray", path=variables["PATH"])
    assert ray is not None
    log = (folder / "head.txt").open("w")
    process = subprocess.Popen([ray, *command[1:]], env=variables, stdout=log, stderr=log, cwd=folder)
    address = f"http://127.0.0.1:{dashboard}"
    try:
        deadline = time.monotonic() + 240
        while True:
            assert process.poll() is None, (folder / "head.txt").read_text()
            assert time.monotonic() < deadline, (folder / "head.txt").read_text()
            try:
                urllib.request.urlopen(f"{address}/api/version", timeout=2)
                pytest.fail("it takes those without a token")
            except urllib.error.HTTPError:
                break  # 401: it is up
            except OSError:
                time.sleep(0.5)
        yield address, variables, folder
    finally:
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()  # asked to end, it takes half a minute
        process.wait()
        for child in family:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue
        log.close()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "submitted.yaml").write_text(SPEC.format(name="submitted"))
    (tmp_path / "job.yaml").write_text(SPEC.format(name="job"))
    (tmp_path / "find.yaml").write_text(SEARCH)
    (tmp_path / "broken.yaml").write_text(SPEC.format(name="broken").replace("qgt", "custom-kind"))
    return tmp_path


def run(command: list[str], folder: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=480, check=False
    )


def the_run(uri: str):
    client = MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("jobs").experiment_id])
    fractions = client.get_metric_history(found.info.run_id, "comm/fraction")
    assert [p.step for p in fractions] == list(range(1, len(fractions) + 1))
    assert len(fractions) == -(-1437 // 128)
    return found


def test_submit_follows_the_job_and_keeps_its_runs_in_our_store(head, folder):
    address, variables, _ = head
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address", address]
    del (variables := dict(variables))["RAY_AUTH_MODE"]  # it asks for the token, which is in its place
    answer = run([*command, "--training.optimizer.lr", "0.05"], folder, variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "epoch 1/1" in answer.stdout
    found = the_run(f"sqlite:///{folder}/mlflow.db")
    assert found.info.run_name == "submitted"
    assert found.data.params["training.optimizer.lr"] == "0.05"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (
            {"HOME": "/nowhere"},
            "the cluster wants a token, and there is none here; copy ~/.ray/auth_token of",
        ),
        ({"RAY_AUTH_MODE": "disabled"}, "the cluster wants a token: export RAY_AUTH_MODE=token"),
        (
            {"RAY_AUTH_TOKEN": TOKEN[::-1]},
            "the cluster refuses the token that is used here; copy ~/.ray/auth_",
        ),
    ],
)
def test_who_has_not_the_token_is_refused_in_one_line(head, folder, changed, problem):
    address, variables, _ = head
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address", address]
    answer = run(command, folder, variables | changed)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"taugrad: --address {address}: {problem}")
    assert answer.stderr.count("\n") == 1


def left(command: list[str], folder: Path, variables: dict[str, str], typed: str) -> tuple[int, str, str]:
    """Submits a job that takes long, and presses Ctrl-C.

    Args:
        command: the submission.
        folder: where it is given.
        variables: its environment.
        typed: at a terminal, after Ctrl-C; empty: there is no terminal.

    Returns:
        The exit code, the job's id, and what was said since.
    """
    ours, theirs = pty.openpty() if typed else os.pipe()
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *command, "--training.epochs", "100000"],
        cwd=folder,
        env=variables,
        stdin=theirs if typed else subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)

    def read() -> bytes:
        chunk = os.read(ours, 4096)
        assert chunk, said
        return chunk

    said = b""
    patience = threading.Timer(300, process.kill)  # what is read ends with it
    patience.start()
    try:
        while not (
            found := re.search(rb"^job (raysubmit_\w+): .*epoch +\d+/", said, re.MULTILINE | re.DOTALL)
        ):
            said += read()
        process.send_signal(signal.SIGINT)
        said = b""
        if typed:
            while not said.endswith(b"Stop it? [y/N] "):
                said += read()
            os.write(ours, typed.encode())
        with suppress(OSError):  # a terminal's end
            while more := os.read(ours, 4096):
                said += more
        return process.wait(60), found[1].decode(), said.decode()
    finally:
        patience.cancel()
        process.kill()
        os.close(ours)


def test_ctrl_c_leaves_a_job_running_or_stops_it(head, folder):
    address, variables, _ = head
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address", address]
    code, job, said = left(command, folder, variables, typed="")
    assert code == 130
    stop = f"RAY_AUTH_MODE=token ray job stop --address {address} {job}"
    assert said.endswith(f"job {job}: goes on; to stop it: {stop}\n")
    status = ["ray", "job", "status", "--address", address, job]
    assert "RUNNING" in run(status, folder, variables).stdout
    in_a_new_shell = {name: value for name, value in variables.items() if name != "RAY_AUTH_MODE"}
    stopped = run(["sh", "-c", stop], folder, in_a_new_shell)
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr

    code, job, said = left(command, folder, variables, typed="y\n")
    assert code == 130
    assert f"job {job}: stopped\r\n" in said  # a library resets the colours behind it
    status = ["ray", "job", "status", "--address", address, job]
    assert f"Job '{job}' was stopped" in run(status, folder, variables).stdout


def test_a_search_as_a_job_keeps_its_journal_and_its_front(head, folder):
    address, variables, home = head
    left = home / ".taugrad" / "taugrad-runs" / "searches" / "found" / "find"
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "job", "submit", "--address", address, "--working-dir", "."]
    answer = run([*command, "--", "taugrad", "search", "find.yaml"], folder, variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "trial 1  tau" in answer.stdout
    uri = f"sqlite:///{home}/.taugrad/mlflow.db"
    (proposed,) = re.findall(r"^Train point (\d+), which .*: (.*)$", answer.stdout, re.MULTILINE)
    point = left / "front" / f"{proposed[0]}.yaml"
    assert proposed[1] == f"MLFLOW_TRACKING_URI={uri} taugrad train {point}"
    assert read_spec(point, []).compressor.kind == "wgt"

    # The job's folder is gone; one that asks for more goes on where it ended, with our command too.
    command = [sys.executable, "-m", "taugrad", "submit", "search", "find.yaml", "--address", address]
    more = run([*command, "--search.trials", "3"], folder, variables | {"MLFLOW_TRACKING_URI": uri})
    assert more.returncode == 0, more.stdout + more.stderr
    assert "3 trials, 2 of them done" in more.stdout
    assert (left / "journal.jsonl").read_text().count('"event":"end"') == 1 + 3  # and the baseline


def test_auto_as_a_job(head, folder):
    address, variables, _ = head
    command = [sys.executable, "-m", "taugrad", "submit", "auto", "submitted.yaml", "--address", address]
    answer = run([*command, "--budget", "0.02", "--sync.mode", "simulated"], folder, variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert re.search(r"used [\d.]+ of 0\.02 MB", answer.stdout)


def test_a_failing_job_passes_on_its_exit_code(head, folder):
    address, variables, _ = head
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address", address]
    answer = run([*command, "--data.kind", "mnist", "--data.path", "nowhere"], folder, variables)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "nowhere" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["broken.yaml"], "compressor.kind = custom-kind: choose none, powersgd, wgt"),
        (["train", "broken.yaml"], "compressor.kind = custom-kind: choose none"),
        (["search", "submitted.yaml"], "nothing to search"),
        (["search", "find.yaml", "--search.trials", "0"], "search.trials = 0"),
        (["find.yaml"], "is the spec of a search"),
        (["auto", "submitted.yaml", "--tolerance", "-1"], "--tolerance -1: must be points of accuracy"),
        (["auto", "submitted.yaml", "--law", "/elsewhere/law.yaml"], "/elsewhere/law.yaml: is outside"),
        (["submitted.yaml", "--resume", "0123"], "--resume 0123: submit does not have this option"),
    ],
)
def test_what_is_wrong_never_reaches_the_cluster(wrong_input, folder, arguments, problem):
    assert problem in wrong_input("submit", *arguments, "--address", "http://127.0.0.1:9")  # nobody answers


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["submitted.yaml", "job.yaml", "--seed", "3"], "train submitted.yaml job.yaml --seed 3"),
        (["train", "submitted.yaml"], "train submitted.yaml"),
        (["search", "find.yaml", "--search.trials=3"], "search find.yaml --search.trials=3"),
        (["search", "find.yaml", "--pick", "2"], "search find.yaml --pick 2"),
        (
            ["auto", "{here}/submitted.yaml", "--law", "{here}/law.yaml", "--tolerance", "2", "--once"],
            "auto submitted.yaml --law law.yaml --tolerance 2 --once",
        ),
    ],
)
def test_the_job_gets_the_command_with_its_options(folder, monkeypatch, arguments, command):
    given = []

    def submitted(address: str, entrypoint: str, runtime_env: dict[str, list[str]]) -> int:
        assert ".ray" in runtime_env["excludes"]  # where the token is
        given.append(entrypoint)
        return 7

    monkeypatch.chdir(folder)
    monkeypatch.setattr("taugrad.platform.launching.submit._submit", submitted)
    monkeypatch.setattr("taugrad.platform.launching.submit.check_job_server", lambda address: None)
    arguments = [each.format(here=folder) for each in arguments]
    assert cli.main(["submit", *arguments, "--address", "http://127.0.0.1:9"]) == 7
    assert given == [f"taugrad {command}"]


def test_a_cluster_that_is_not_there_is_said_so(folder, environment):
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address"]
    answer = run([*command, f"http://127.0.0.1:{free_port()}"], folder, environment)
    assert answer.returncode == 2
    assert "no cluster answers there (Connection refused)" in answer.stderr.replace("[Errno 111] ", "")
    assert answer.stderr.count("\n") == 1
    answer = run([*command, "127.0.0.1:8265"], folder, environment)
    assert answer.returncode == 2
    assert "must look like http://HOST:8265" in answer.stderr
