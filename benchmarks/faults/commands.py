"""A command of taugrad under way, all that it has started, and what it has said."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MISLEADING = ("RAY_", "MLFLOW_", "TAUGRAD_")
LONGEST_S = 300.0
"""A command that takes longer hangs."""


def clean_environment() -> dict[str, str]:
    """The environment without what would lead a command to another cluster or store."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(MISLEADING)}
    return ours | {
        "RAY_worker_niceness": "0",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # five more processes, for jobs that are not ours
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def family(pid: int) -> list[psutil.Process]:
    """A process and all that it has started, as far as they are still there."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def named(processes: Sequence[psutil.Process], part: str) -> list[psutil.Process]:
    """Those whose command line, which Ray's processes write anew, has a part."""
    found = []
    for each in processes:
        with suppress(psutil.Error):
            if part in (" ".join(each.cmdline()) or each.name()):
                found.append(each)
    return found


def end(processes: Sequence[psutil.Process]) -> None:
    """Kills processes and waits for their end; those that are stopped end, too."""
    for each in processes:
        with suppress(psutil.Error):
            each.kill()
    psutil.wait_procs(processes, timeout=30)


class Command:
    """A command with an output that can be read while it runs."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: Path,
        before: Sequence[str] = (),
    ) -> None:
        """Starts it.

        Args:
            arguments: of `taugrad`.
            folder: where.
            environment: its.
            output: a file to which what it says is added.
            before: what starts it, such as `ip netns exec NAME`.
        """
        self.output = output
        self._begins_at = output.stat().st_size if output.exists() else 0
        with output.open("a") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "taugrad", *arguments],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.output.read_bytes()[self._begins_at :].decode(errors="replace")

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def family(self) -> list[psutil.Process]:
        """It and all that it has started."""
        return family(self.process.pid)

    def wait_for(self, pattern: str) -> bool:
        """Waits until it has said something; whether it did so before its end."""
        deadline = time.monotonic() + LONGEST_S
        while not re.search(pattern, self.said):
            if not self.runs or time.monotonic() > deadline:
                return bool(re.search(pattern, self.said))
            time.sleep(0.05)
        return True

    def wait(self) -> int | None:
        """Its exit code; None where it hung, and was killed with all that it had started."""
        try:
            return self.process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """Ends it and all that it has started."""
        everything = self.family()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
        end(everything)
        self.process.wait(30)
