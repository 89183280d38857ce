"""An MLflow server that can be killed and started again on the same port."""

import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from taugrad.platform.ports import free_port

from .commands import end, family

_UP_S = 240.0


class Server:
    """A server of its own, on 127.0.0.1; its database, artifacts and log lie in a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str], database: str = "server.db") -> None:
        self.folder, self.environment = folder, environment
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.arguments = [
            *("server", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend-store-uri", f"sqlite:///{folder / database}"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ]
        """Arguments of `mlflow`; others may be given before it is started."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it answers; raises RuntimeError where it does not."""
        command = [sys.executable, "-m", "mlflow", *self.arguments, "--workers", "1"]
        with (self.folder / "server.txt").open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=dict(self.environment), stdout=log, stderr=log
            )
        deadline = time.monotonic() + _UP_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2)
                return
            except OSError:
                time.sleep(0.3)
        raise RuntimeError((self.folder / "server.txt").read_text())

    def kill(self) -> None:
        """Ends it and its workers at once."""
        if self.process is not None:
            end(family(self.process.pid))
            self.process.wait(30)
            self.process = None
