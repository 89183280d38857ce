"""MLflow's server ends with the command that serves it."""

import os
import signal

import psutil
import pytest
from waiting import lives, program, until

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


@pytest.mark.long  # platform/test_watchdog has any command's processes, killed or not
@pytest.mark.parametrize(("sign", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_it_ends_with_the_command(sign, code, tmp_path):
    store = f"sqlite:///{tmp_path}/mlflow.db"
    variables = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with program(SERVING, store, tmp_path / "log.txt", env=variables) as process:
        server = psutil.Process(int(process.stdout.readline()))
        family = [server, *server.children(recursive=True)]
        try:
            assert store not in " ".join(" ".join(process.cmdline()) for process in family)
            process.send_signal(sign)
            assert process.wait(60) == code
            until(lambda: not any(map(lives, family)), timeout_s=60)
        finally:
            for child in filter(lives, family):
                child.kill()
