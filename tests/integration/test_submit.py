"""The same run as a Ray job, with our command and with Ray's own."""

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from taugrad.platform.ports import free_port

pytestmark = pytest.mark.ray

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
    port, dashboard, client, agent, runtime_agent, metrics = free_ports(6)
    variables = environment | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "HOME": str(folder),  # jobs without a tracking URI keep their runs there
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
                break
            except urllib.error.HTTPError:
                break  # it is up, and wants a token
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
    answer = run([*command, "--training.optimizer.lr", "0.05"], folder, variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "epoch 1/1" in answer.stdout
    found = the_run(f"sqlite:///{folder}/mlflow.db")
    assert found.info.run_name == "submitted"
    assert found.data.params["training.optimizer.lr"] == "0.05"


def test_rays_own_command_does_the_same(head, folder):
    address, variables, home = head
    ray = str(Path(sys.executable).with_name("ray"))
    command = [ray, "job", "submit", "--address", address, "--working-dir", "."]
    answer = run([*command, "--", "taugrad", "train", "job.yaml"], folder, variables)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    # Ray deletes the job's folder; what it tracked lies in the home of the head.
    assert the_run(f"sqlite:///{home}/.taugrad/mlflow.db").info.run_name == "job"


def test_a_failing_job_passes_on_its_exit_code(head, folder):
    address, variables, _ = head
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address", address]
    answer = run([*command, "--data.kind", "mnist", "--data.path", "nowhere"], folder, variables)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "nowhere" in answer.stdout


def test_a_wrong_spec_never_reaches_the_cluster(wrong_input, folder):
    said = wrong_input("submit", "broken.yaml", "--address", "http://127.0.0.1:9")  # nobody answers there
    assert "compressor.kind = custom-kind: choose none, powersgd, wgt" in said


def test_a_cluster_that_is_not_there_is_said_so(folder, environment):
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address"]
    answer = run([*command, f"http://127.0.0.1:{free_port()}"], folder, environment)
    assert answer.returncode == 1
    assert "does not take the job" in answer.stderr
    answer = run([*command, "127.0.0.1:8265"], folder, environment)
    assert answer.returncode == 2
    assert "must look like http://HOST:8265" in answer.stderr
