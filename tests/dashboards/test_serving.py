"""MLflow's server ends with the command that serves it."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

SERVING = """
import sys, threading
from pathlib import Path
from taugrad.dashboards.serving import mlflow_server
from taugrad.ending import run

def command():
    with mlflow_server(sys.argv[1], Path(sys.argv[2])) as server:
        print(server.pid, flush=True)
        threading.Event().wait()

sys.exit(run(command))
"""


def runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("sign", "code"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long), (signal.SIGKILL, -9)]
)
def test_it_ends_with_the_command(sign, code, tmp_path):
    command = [sys.executable, "-c", SERVING, f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path / "log.txt")]
    variables = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables, text=True)
    server = psutil.Process(int(process.stdout.readline()))
    family = [server, *server.children(recursive=True)]
    try:
        assert f"sqlite:///{tmp_path}" not in " ".join(" ".join(each.cmdline()) for each in family)
        process.send_signal(sign)
        assert process.wait(60) == code
        deadline = time.monotonic() + 60
        while any(map(runs, family)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for each in family:
            if each.is_running():
                each.kill()
