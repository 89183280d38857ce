"""MLflow's own UI on this machine: 127.0.0.1 only, a free port, ended by its own process id."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from taugrad.platform.ports import LOOPBACK, free_port
from taugrad.platform.spec import COMMAND_LINE, SpecError
from taugrad.platform.watchdog import watched

_START_S = 90.0
_STOP_S = 10.0


@contextlib.contextmanager
def mlflow_server(uri: str, log: Path) -> Iterator[str]:
    """Serves a local database until the block ends.

    Args:
        uri: The database, such as `sqlite:///mlflow.db`.
        log: A file for what the server says.

    Yields:
        The server's URL; it answers.

    Raises:
        SpecError: It ended, or did not answer within 90 s.
    """
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server"]
    command += ["--host", LOOPBACK, "--port", str(port), "--workers", "1"]
    with watched() as mark:
        # The database's password is nothing for the list of processes, which everybody may read.
        environment = os.environ | mark | {"MLFLOW_BACKEND_STORE_URI": uri}
        with log.open("wb") as output:
            # A session of its own: the server starts children, which end with its group.
            process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        url = f"http://{LOOPBACK}:{port}"
        try:
            _wait(url, process, log)
            yield url
        finally:
            _end(process)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_S
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SpecError(
                COMMAND_LINE, f"--serve: mlflow server ended with code {process.returncode}: {_tail(log)}"
            )
        # Whatever keeps it from answering, it may be about to.
        with contextlib.suppress(OSError), direct.open(f"{url}/health", timeout=2):
            return
        time.sleep(0.3)
    raise SpecError(
        COMMAND_LINE, f"--serve: mlflow server did not answer at {url} within {_START_S:.0f} s: {_tail(log)}"
    )


def _end(process: "subprocess.Popen[bytes]") -> None:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
            return


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-600:]
