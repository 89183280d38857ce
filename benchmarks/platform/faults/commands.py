"""A command of taugrad under way, all that it has started, and what it has said."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MISLEADING = ("RAY_", "MLFLOW_", "TAUGRAD_")
LONGEST_S = 900.0
"""A command that takes longer hangs."""
_UP_S = 240.0


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
    running = []
    for process in processes:
        with suppress(psutil.Error):
            if part in (" ".join(process.cmdline()) or process.name()):
                running.append(process)
    return running


def end(processes: Sequence[psutil.Process]) -> None:
    """Kills processes and waits for their end; those that are stopped end, too."""
    for process in processes:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(processes, timeout=30)


def started(
    command: Sequence[str], url: str, log: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """A server, once it answers at a URL; raises RuntimeError where it does not."""
    with log.open("a") as output:
        process = subprocess.Popen(
            command, cwd=log.parent, env=dict(environment), stdout=output, stderr=output
        )
    deadline = time.monotonic() + _UP_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=2)
            return process
        time.sleep(0.3)
    raise RuntimeError(log.read_text())


class Command:
    """A command with an output that can be read while it runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path, begins_at: int) -> None:
        """Watches a process, or what runs it; what it says is added to `output` from that file's size on."""
        self.process, self.output, self._begins_at = process, output, begins_at

    @classmethod
    def start(
        cls,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: Path,
        before: Sequence[str] = (),
    ) -> "Command":
        """Starts `taugrad` with some arguments; `before` is what starts it, such as `ip netns exec NAME`."""
        begins_at = output.stat().st_size if output.exists() else 0
        with output.open("a") as log:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", "taugrad", *arguments],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return cls(process, output, begins_at)

    @property
    def said(self) -> str:
        """What it has said so far."""
        return self.output.read_bytes()[self._begins_at :].decode(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self.process.poll()

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.code is None

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
        deadline = time.monotonic() + LONGEST_S
        while self.runs and time.monotonic() < deadline:
            time.sleep(0.05)
        if (code := self.code) is None:
            self.kill()
        return code

    def kill(self) -> None:
        """Ends it and all that it has started."""
        everything = self.family()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
        end(everything)
        self.process.wait(30)


class RayHost:
    """A Ray of our own on which commands run one after the other."""

    program = Path(__file__).with_name("one_ray.py")

    def __init__(
        self,
        output: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        *,
        dashboard: bool = False,
    ) -> None:
        """Is started with its first command; what all of them and Ray say is added to `output`.

        Workers find the modules in `folder`. The dashboard is what searches that stop trials need.
        """
        self._output, self._folder, self._dashboard = output, folder, dashboard
        self._environment = clean_environment() if environment is None else environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        arguments: Sequence[str],
        folder: Path,
        variables: Mapping[str, str] | None = None,
        *,
        compare: bool = False,
    ) -> "HostedCommand":
        """Starts `taugrad` with some arguments; the command before has ended.

        `compare`: show a table and figures when its runs are over, which takes longer than small runs do.
        """
        if self.process is None or self.process.poll() is not None:
            with self._output.open("a") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-u", str(self.program), *["dashboard"] * self._dashboard],
                    cwd=self._folder,
                    env=dict(self._environment),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        begins_at = self._output.stat().st_size
        assert self.process.stdin is not None
        asked = {
            "arguments": list(arguments),
            "folder": str(folder),
            "output": str(self._output.absolute()),
            "variables": dict(variables or {}),
            "compare": compare,
        }
        self.process.stdin.write(f"{json.dumps(asked)}\n".encode())
        self.process.stdin.flush()
        return HostedCommand(self.process, self._output, begins_at)

    def close(self) -> None:
        """Ends it; the next command would start another one."""
        if self.process is not None:
            end(family(self.process.pid))
            self.process.wait(30)
            self.process = None


class HostedCommand(Command):
    """A command that a `RayHost` runs."""

    @property
    def code(self) -> int | None:
        match = re.search(r"^exit (\d+)$", self.said, re.MULTILINE)
        return self.process.poll() if match is None else int(match[1])

    def kill(self) -> None:
        """Ends the Ray too where the command still runs."""
        if self.runs:
            super().kill()
