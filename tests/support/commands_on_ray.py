"""`taugrad` commands one after the other on one Ray, whose start takes longer than most of them do."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from waiting import TIMEOUT_S, until

CLOSING_S = 60  # more only where a test failed and its command goes on
_SCRIPT = Path(__file__).resolve().parents[1] / "integration" / "one_ray.py"


class Finished(NamedTuple):
    """A command that ended."""

    code: int
    said: str
    """On standard output and as errors."""


class OneRay:
    """A Ray for commands, one after the other, in one folder."""

    def __init__(self, folder: Path, environment: dict[str, str], *, dashboard: bool = True) -> None:
        """Starts it; searches need its dashboard."""
        self.folder, self.output = folder, folder / "output.txt"
        self._errors = folder / "errors.txt"
        pipe = subprocess.PIPE
        with self._errors.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(self.output), *["dashboard"] * dashboard],
                cwd=folder,
                env=environment,
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                text=True,
            )

    @property
    def said(self) -> str:
        """What the last command has said so far."""
        return self.output.read_text() if self.output.exists() else ""

    def start(self, *arguments: str) -> None:
        """Starts a command; it may begin with variables, as `NAME=VALUE`."""
        self.output.unlink(missing_ok=True)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(arguments) + "\n")
        self.process.stdin.flush()

    def wait_for(self, pattern: str) -> None:
        """Waits until the command has said something."""
        until(
            lambda: re.search(pattern, self.said),
            lambda: self.said + self._errors.read_text(),
            goes_on=lambda: self.process.poll() is None,
        )

    def finish(self) -> Finished:
        """Waits for the command's end."""
        assert self.process.stdout is not None
        patience = threading.Timer(TIMEOUT_S, self.process.kill)
        patience.start()
        code = self.process.stdout.readline()
        patience.cancel()
        assert code, self.said + self._errors.read_text()
        return Finished(int(code), self.said)

    def __call__(self, *arguments: str) -> Finished:
        """Runs a command."""
        self.start(*arguments)
        return self.finish()

    def kill_a_worker(self) -> None:
        """Ends a worker of the run that is trained."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        workers = [each for each in family if "RayTrainWorker" in " ".join(each.cmdline() or [each.name()])]
        os.kill(workers[-1].pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends Ray."""
        assert self.process.stdin is not None
        family: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True)
        try:
            self.process.stdin.close()
            self.process.wait(CLOSING_S)
        except (OSError, subprocess.TimeoutExpired):  # it has ended; a command goes on
            pass
        finally:
            self.process.kill()
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            self.process.wait()
