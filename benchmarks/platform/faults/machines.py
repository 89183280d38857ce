"""A cluster of two machines, which are network namespaces with a link between them. Needs root."""

import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ...network import Link, Network, uniform
from ...network.namespaces import ip
from .commands import Command, clean_environment
from .places import Place
from .scenarios import Scenario

_START = "ray start --disable-usage-stats --num-cpus=1 --object-store-memory=134217728 --node-ip-address="
_UP_S = 120.0


class Machines:
    """Ray on two machines of one CPU each; a run's two workers are on both.

    Attributes:
        network: that joins them.
        address: of Ray's head, on the first one.
    """

    def __init__(self, folder: Path, *, dashboard: bool = False) -> None:
        """Makes them; raises NetworkError or RuntimeError where that fails. Searches need a dashboard."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.network = Network(uniform(2, Link.parse("1gbit"))).__enter__()
        self.head, self.second = self.network.hosts
        self.address = f"{self.head.address}:6379"
        self.environment = clean_environment() | {
            "HOME": str(folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0123456789abcdef0123456789abcdef",
        }
        with_one = f"--include-dashboard={str(dashboard).lower()} --dashboard-host={self.head.address}"
        self._start(0, f"{_START}{self.head.address} --head --port=6379 {with_one}")
        self.start_second()

    def start_second(self) -> None:
        """Has the second machine join, unless it is there."""
        if any(process.name() == "raylet" for process in self.processes(1)):
            return
        self.kill_second()
        self._start(1, f"{_START}{self.second.address} --address={self.address}")

    def kill_second(self) -> None:
        """SIGKILL to all that runs on the second machine."""
        for process in self.processes(1):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def processes(self, number: int) -> list[psutil.Process]:
        """All that run on a machine."""
        members = []
        for pid in ip(f"netns pids {self.network.hosts[number].namespace}").split():
            with suppress(psutil.NoSuchProcess):
                members.append(psutil.Process(int(pid)))
        return members

    def close(self) -> None:
        """Removes them, with all that runs there."""
        self.network.__exit__(None, None, None)

    def _start(self, number: int, line: str) -> None:
        log = self._folder / f"ray-{number}.txt"  # a pipe would stay open as long as Ray runs
        # Commands run on the first machine, and find Ray's sockets in the folders that all machines share.
        shell = ["sh", "-c", f"({line}) > {log} 2>&1"]
        command = self.network.hosts[number].command(shell, own_folders=number > 0)
        deadline = time.monotonic() + _UP_S
        while subprocess.run(command, env=self.environment, cwd=self._folder, check=False).returncode:
            if time.monotonic() > deadline:
                raise RuntimeError(log.read_text())
            time.sleep(2)


class OnMachines(Place):
    """Commands on the first of two machines that cases share."""

    def __init__(self, folder: Path, scenario: Scenario, template: Path, machines: Machines) -> None:
        super().__init__(folder, scenario, template)
        self.machines = machines
        self.environment = self.reaching(machines)

    def start(self, arguments: Sequence[str]) -> Command:
        inside = self.machines.head.command([])
        return Command.start(arguments, self.folder, self.environment, self.output, before=inside)

    def processes(self, command: Command) -> list[psutil.Process]:
        return [*command.family(), *self.machines.processes(0), *self.machines.processes(1)]
