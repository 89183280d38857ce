"""Jobs on a cluster that wants a token: the lines of docs/clusters.md, in fresh shells, and others."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from servers import LOOPBACK, listeners
from specs import write_digits
from stored import all_runs
from waiting import TIMEOUT_S, ended, said_by, until

from taugrad import cli
from taugrad.platform.ports import free_port

pytestmark = pytest.mark.ray

ROOT = Path(__file__).resolve().parents[2]

SPEC = {"training": {"epochs": 1, "batch_size": 128}, "workers": {"cpus": 0.5}}
SEARCHED = {
    "experiment": "found",
    "sync": {"mode": "simulated"},
    "compressor": {"kind": "wgt", "tau": {"log": [1e-3, 1e-1]}},
    "search": {"trials": 2},
}
PORTS = {6379: "--port", 8265: "--dashboard-port", 10001: "--ray-client-server-port"}
"""What a head takes where it is not told otherwise."""


def with_free_ports(head: str, jobs: str) -> tuple[str, str]:
    """The lines with ports that no other program has on this machine."""
    for port, option in PORTS.items():
        other = str(free_port())
        head = re.sub(r"^(ray start --head.*)$", rf"\1 {option}={other}", head, flags=re.MULTILINE)
        jobs = jobs.replace(str(port), other)
    return head, jobs


def is_up(address: str) -> bool:
    try:
        urllib.request.urlopen(f"{address}/api/version", timeout=2)
        pytest.fail("it takes those without a token")
    except urllib.error.HTTPError:
        return True  # 401
    except OSError:
        return False


class Shell:
    """Starts commands in a bash that knows nothing but a copy of the repository, and our .venv in it."""

    def __init__(self, folder: Path) -> None:
        """Copies the repository into a folder; beside it is the home."""
        self.folder, self.home = folder / "taugrad", folder / "home"
        for name in filter(None, said_by(["git", "ls-files", "-z"], cwd=ROOT).split("\0")):
            if (ROOT / name).is_symlink() or (ROOT / name).exists():
                (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.folder / name, follow_symlinks=False)
        (self.folder / ".venv").symlink_to(sys.prefix)
        self.home.mkdir()

    def __call__(self, commands: str, log: Path, **variables: str) -> "subprocess.Popen[str]":
        """Starts some."""
        with log.open("w") as output:
            return subprocess.Popen(
                # Where the tests run in the background, Ctrl-C may be ignored, and that is inherited.
                ["env", "--default-signal=INT", "bash", "-e", "-c", commands],
                cwd=self.folder,
                env={"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/bin:/bin"} | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                start_new_session=True,  # what Ctrl-C would reach
            )


@dataclass
class Head:
    """The head of docs/clusters.md, on one machine."""

    shell: Shell
    """Where lines are given; its home has the token, and what jobs keep."""
    process: subprocess.Popen[str]
    address: str
    jobs: str
    """The page's lines that give it jobs."""
    quick: dict[str, str]
    family: list[psutil.Process] = field(default_factory=list)
    """What the head has started, when it was last looked at."""

    def look(self) -> None:
        """Notes what it has started."""
        self.family = psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """The page's first lines. Ctrl-C ends it in the last test that needs it."""
    _, _, section = (ROOT / "docs" / "clusters.md").read_text().partition("\n## On one machine\n")
    blocks = re.findall(r"^```\n(.*?)^```$", section.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    head_lines, job_lines = with_free_ports(*blocks)
    (address,) = set(re.findall(r"http://127.0.0.1:\d+", job_lines))
    # The lines stay as they are. Ray's folder is this test's own: in the common one a head that another test
    # starts meanwhile is taken for the head of these jobs. Its name is short, for the sockets in it.
    folder = tempfile.mkdtemp(prefix="tg", dir="/tmp")
    quick = {"TAUGRAD_TRAINING__EPOCHS": "1", "RAY_TMPDIR": folder}
    quick["RAY_worker_niceness"] = "0"  # as for all commands here
    shell = Shell(tmp_path_factory.mktemp("fresh"))
    log = shell.home.with_name("head.txt")
    process = shell(head_lines, log, **quick)
    head = Head(shell, process, address, job_lines, quick)
    try:
        until(lambda: is_up(address), log.read_text, goes_on=lambda: process.poll() is None)
        yield head
    finally:
        family = head.family
        if process.poll() is None:
            family = [*psutil.Process(process.pid).children(recursive=True), process]
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def head(started, environment):
    """Its job server's address, the environment to reach it with, and its home."""
    home = started.shell.home
    variables = environment | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}",
        "HOME": str(home),  # jobs without a tracking URI keep their runs there; it has the token
        "RAY_AUTH_MODE": "token",
    }
    return started.address, variables, home


@pytest.fixture
def folder(tmp_path):
    for name in ("submitted", "job"):
        write_digits(tmp_path, name, **SPEC, experiment="jobs", compressor="qgt(0.01)")
    write_digits(tmp_path, "find", **SPEC, **SEARCHED)
    return tmp_path


def the_run(uri: str) -> Run:
    client = MlflowClient(uri)
    (run,) = all_runs(client, "quickstart")
    fractions = client.get_metric_history(run.info.run_id, "comm/fraction")
    assert [p.step for p in fractions] == list(range(1, -(-4000 // 64) + 1))
    return run


@pytest.mark.long
def test_the_readmes_lines_work_as_they_stand(started, tmp_path):
    log = tmp_path / "jobs.txt"
    jobs = started.shell(started.jobs, log, **started.quick)
    deadline, seen = time.monotonic() + 2 * TIMEOUT_S, set[str]()
    while jobs.poll() is None:
        assert time.monotonic() < deadline, log.read_text()
        started.look()
        seen |= listeners(started.family)
        time.sleep(2)
    said = log.read_text()
    assert jobs.returncode == 0, said
    assert said.count("See the runs: mlflow ui") == 2, said  # our command's run, and Ray's
    # Ray deletes its job's folder; what it tracked lies in the home of the head. Ours is where we are.
    uri = f"sqlite:///{started.shell.home}/.taugrad/mlflow.db"
    assert f"Compare them: MLFLOW_TRACKING_URI={uri} taugrad dashboard quickstart --serve" in said
    for store in (uri, f"sqlite:///{started.shell.folder}/mlflow.db"):
        run = the_run(store)
        assert (run.info.run_name, run.info.status) == ("wgt", "FINISHED")
    assert seen <= LOOPBACK
    assert seen


@pytest.mark.long
def test_a_failing_job_passes_on_its_exit_code(head, folder):
    address, variables, _ = head
    command = [sys.executable, "-m", "taugrad", "submit", "submitted.yaml", "--address", address]
    nowhere = ["--data.kind", "mnist", "--data.path", "nowhere"]
    answer = ended([*command, *nowhere], cwd=folder, env=variables)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "nowhere" in answer.stdout


@pytest.mark.long
def test_ctrl_c_ends_the_head_and_all_that_it_has_started(started):
    """The last one that needs it."""
    started.look()
    os.killpg(started.process.pid, signal.SIGINT)
    started.process.wait(60)
    _, alive = psutil.wait_procs(started.family, timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ("submitted.yaml job.yaml --seed 3", "train submitted.yaml job.yaml --seed 3"),
        ("train submitted.yaml", "train submitted.yaml"),
        ("search find.yaml --search.trials=3", "search find.yaml --search.trials=3"),
        ("search find.yaml --pick 2", "search find.yaml --pick 2"),
        (
            "auto {here}/submitted.yaml --calibration {here}/calibration.yaml --target loss=1 --link 1gbit",
            "auto submitted.yaml --calibration calibration.yaml --target loss=1 --link 1gbit",
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
    monkeypatch.setattr("taugrad.platform.launching.driver.submit._submit", submitted)
    monkeypatch.setattr("taugrad.platform.launching.driver.submit.check_job_server", lambda address: None)
    assert (
        cli.main(["submit", *arguments.format(here=folder).split(), "--address", "http://127.0.0.1:9"]) == 7
    )
    assert given == [f"taugrad {command}"]
