"""The README's lines for a Ray cluster, as they stand, in fresh shells."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from taugrad.platform.ports import free_port

pytestmark = pytest.mark.ray

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
TIMEOUT_S = 480
PORTS = {6379: "--port", 8265: "--dashboard-port", 10001: "--ray-client-server-port"}
"""What a head takes where it is not told otherwise."""


def taken(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def with_free_ports(head: str, jobs: str) -> tuple[str, str]:
    """The lines with other ports, where another program has Ray's own on this machine."""
    for port, option in PORTS.items():
        if taken(port):
            other = str(free_port())
            print(f"port {port} is taken: the lines are run with {other}")
            head = re.sub(r"^(ray start --head.*)$", rf"\1 {option}={other}", head, flags=re.MULTILINE)
            jobs = jobs.replace(str(port), other)
    return head, jobs


def listeners(family: list[psutil.Process]) -> set[str]:
    """The addresses on which processes listen."""
    found = set()
    for process in family:
        with suppress(psutil.Error):
            found |= {c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return found


def wait_until_up(address: str, head: subprocess.Popen[str], log: Path) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        assert head.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            urllib.request.urlopen(f"{address}/api/version", timeout=2)
            pytest.fail("it takes those without a token")
        except urllib.error.HTTPError:
            return  # 401
        except OSError:
            time.sleep(0.5)


def test_the_lines_work_as_they_stand(
    readme: Callable[[str], list[str]],
    fresh_shell: Callable[..., "subprocess.Popen[str]"],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    head_lines, job_lines = with_free_ports(*readme("On a Ray cluster"))
    (address,) = set(re.findall(r"http://127.0.0.1:\d+", job_lines))
    # The lines stay as they are. Ray's folder is this test's own: in the common one a head that another test
    # starts meanwhile is taken for the head of these jobs. Its name is short, for the sockets in it.
    own = tempfile.mkdtemp(prefix="tg", dir="/tmp")
    request.addfinalizer(lambda: shutil.rmtree(own, ignore_errors=True))
    quick = {"TAUGRAD_TRAINING__EPOCHS": "1", "RAY_TMPDIR": own}
    log, jobs_log = tmp_path / "head.txt", tmp_path / "jobs.txt"
    head = fresh_shell(head_lines, log, **quick)
    seen: set[str] = set()
    family: list[psutil.Process] = []
    try:
        wait_until_up(address, head, log)
        jobs = fresh_shell(job_lines, jobs_log, **quick)
        deadline = time.monotonic() + 2 * TIMEOUT_S
        while jobs.poll() is None:
            assert time.monotonic() < deadline, jobs_log.read_text()
            family = psutil.Process(head.pid).children(recursive=True)
            seen |= listeners(family)
            time.sleep(1)
        said = jobs_log.read_text()
        assert jobs.returncode == 0, said
        assert said.count("epoch 1/1") == 2, said  # our command's run, and Ray's
        # Ray deletes its job's folder; what it tracked lies in the home of the head. Ours is where we are.
        uri = f"sqlite:///{tmp_path}/home/.taugrad/mlflow.db"
        assert f"Compare them: MLFLOW_TRACKING_URI={uri} taugrad dashboard quickstart --serve" in said
        for store in (uri, f"sqlite:///{tmp_path}/taugrad/mlflow.db"):
            client = MlflowClient(store)
            (run,) = client.search_runs([client.get_experiment_by_name("quickstart").experiment_id])
            assert (run.info.run_name, run.info.status) == ("wgt", "FINISHED")
        assert seen <= LOOPBACK
        assert seen

        os.killpg(head.pid, signal.SIGINT)  # Ctrl-C
        head.wait(60)
        _, alive = psutil.wait_procs(family, timeout=60)
        assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
    finally:
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        if head.poll() is None:
            for each in [*psutil.Process(head.pid).children(recursive=True), head]:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
