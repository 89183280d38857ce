"""An MLflow server that can be killed and started again on the same port."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from taugrad.platform.ports import free_port

from .commands import end, family, started


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
        self.process = started(command, f"{self.uri}/health", self.folder / "server.txt", self.environment)

    def kill(self) -> None:
        """Ends it and its workers at once."""
        if self.process is not None:
            end(family(self.process.pid))
            self.process.wait(30)
            self.process = None
