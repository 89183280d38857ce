"""The hosts of network/churn.py: one process that trains in each, which can be killed and started again."""

import json
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from time import sleep, time
from typing import Any, Literal

from ..platform.faults.commands import end, family
from . import Network
from .churn_member import Settings

PORT = 7070
_START_S = 300.0


class Hosts:
    """A training as members, with its coordinator on the first host.

    Attributes:
        kind: see `Settings`.
        paces: of hosts that have another one than the settings, before they are started.
        spans: for each process, its host, its start and its end.
        events: the time, what was done, and to which host; -1: the coordinator.
    """

    kind: Literal["members", "fixed", "ddp"] = "members"

    def __init__(self, network: Network, folder: Path, pace_s: float, **settings: Any) -> None:
        """Starts the coordinator; for `settings` see `Settings`."""
        self._network, self._folder = network, folder
        at = f"{network.hosts[0].address}:{PORT}"
        self._settings = Settings(self.kind, 0, at, str(folder), pace_s, **settings)
        self.paces: dict[int, float] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self.spans: list[list[float]] = []
        self.events: list[tuple[float, str, int]] = []
        self._coordinator = self._start_coordinator()

    def _start_coordinator(self) -> "subprocess.Popen[bytes]":
        key = self._folder / "key"
        if not key.exists():
            key.write_text(secrets.token_hex(32))
        state = str(self._folder / "run.db")
        return self._popen(
            0, "-m", "taugrad.compressors.coordinator", "--listen", self._settings.at, "--key-file", str(key),
            "--state", state,
        )  # fmt: skip

    def restart_coordinator(self, after_s: float) -> None:
        """Kills the coordinator, and starts it again after some seconds."""
        end(family(self._coordinator.pid))
        self.events.append((time(), "kill", -1))
        sleep(after_s)
        self.events.append((time(), "start", -1))
        self._coordinator = self._start_coordinator()

    # Processes.

    def start(self, host: int) -> None:
        """Starts a host's process, with its checkpoint if there is one."""
        pace_s = self.paces.get(host, self._settings.pace_s)
        self._launch(host, replace(self._settings, host=host, pace_s=pace_s))
        self.events.append((time(), "start", host))

    def start_all(self, hosts: int) -> None:
        """Starts the first hosts' processes."""
        for host in range(hosts):
            self.start(host)

    def kill(self, host: int) -> None:
        """Kills a host's process at once."""
        end(family(self._processes.pop(host).pid))
        self._note_end(host, "kill")

    def notify(self, host: int) -> None:
        """Gives a host's process a notice (SIGTERM), and waits for its end."""
        process = self._processes.pop(host)
        process.terminate()
        process.wait()
        self._note_end(host, "notice")

    def suspend(self, host: int, for_s: float) -> None:
        """Stops a host's process for some seconds."""
        self._processes[host].send_signal(signal.SIGSTOP)
        self.events.append((time(), "suspend", host))
        sleep(for_s)
        self._processes[host].send_signal(signal.SIGCONT)
        self.events.append((time(), "continue", host))

    def close(self) -> None:
        for process in [*self._processes.values(), self._coordinator]:
            end(family(process.pid))

    def _launch(self, host: int, settings: Settings, *launcher: str) -> None:
        text = json.dumps(asdict(settings))
        self._processes[host] = self._popen(host, *launcher, "-m", "benchmarks.network.churn_member", text)
        self.spans.append([host, time(), float("inf")])

    def _popen(self, host: int, *arguments: str) -> "subprocess.Popen[bytes]":
        # With torchrun's shared store, all hang once the host of rank 0 has died.
        variables = {"GLOO_SOCKET_IFNAME": "net0", "OMP_NUM_THREADS": "1"}
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with (self._folder / f"{host}.err").open("ab") as errors:
            return self._network.hosts[host].popen(
                [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=errors,
                env=os.environ | variables,
            )  # fmt: skip

    def _note_end(self, host: int, how: str) -> None:
        now = time()
        next(span for span in reversed(self.spans) if span[0] == host)[2] = now
        self.events.append((now, how, host))

    # What they say.

    def lines(self) -> list[dict[str, Any]]:
        """The lines of all logs, by time."""
        lines = []
        for path in self._folder.glob("*.log"):
            whole = path.read_text().rpartition("\n")[0].splitlines()
            lines += [{"host": int(path.stem), **json.loads(line)} for line in whole]
        return sorted(lines, key=lambda line: line["at"])

    def begin(self, hosts: int) -> float:
        """Starts the first hosts, and waits until all have exchanged; returns when."""
        self.start_all(hosts)
        for host in range(hosts):
            self.wait_for(host, "exchange")
        return time()

    def wait_for(self, host: int, event: str, since: float = 0.0) -> None:
        """Waits until a host's log has an event after a time."""
        until, asked = time() + _START_S, (host, event)
        while not any((line["host"], line["event"]) == asked and line["at"] > since for line in self.lines()):
            sleep(0.2)
            ended = self._processes[host].poll()
            if ended is not None or time() > until:
                errors = (self._folder / f"{host}.err").read_text()[-2000:]
                raise RuntimeError(f"host {host}: no {event!r}, exit status {ended}: {errors}")


class FixedGroup(Hosts):
    """A training by local steps in a group that is fixed: when one is lost, all begin again."""

    kind = "fixed"

    def _start_coordinator(self) -> "subprocess.Popen[bytes]":
        return self._popen(0, "-c", "")  # there is none

    def start_all(self, hosts: int) -> None:
        """Starts all from the last round of which all have a checkpoint; ends what still runs."""
        for host in list(self._processes):
            self.kill(host)
        saved = [
            {int(path.stem.partition("-")[2]) for path in self._folder.glob(f"{host}-*.pt")}
            for host in range(hosts)
        ]
        start = max(set.intersection(*saved), default=-1)
        at = f"{self._network.hosts[0].address}:{PORT + 1 + len(self.spans)}"
        for host in range(hosts):
            self._launch(host, replace(self._settings, host=host, at=at, hosts=hosts, start=start))
            self.events.append((time(), "start", host))

    def start(self, host: int) -> None:
        """Starts all again: this host is back."""
        self.start_all(len(self._network.hosts))


class Elastic(Hosts):
    """A training by DDP that torchrun starts, and starts again with those that are there."""

    kind = "ddp"

    def _start_coordinator(self) -> "subprocess.Popen[bytes]":
        host, _, port = self._settings.at.partition(":")
        program = f"""
import signal, torch.distributed as dist
store = dist.TCPStore({host!r}, {port}, is_master=True, wait_for_workers=False)
signal.pause()
"""
        return self._popen(0, "-c", program)

    def _launch(self, host: int, settings: Settings, *launcher: str) -> None:
        options = (
            f"--nnodes=1:{len(self._network.hosts)}", "--nproc-per-node=1", "--max-restarts=1000",
            "--rdzv-backend=c10d", f"--rdzv-endpoint={settings.at}", "--rdzv-id=churn",
            "--rdzv-conf=is_host=false", f"--local-addr={self._network.hosts[host].address}",
        )  # fmt: skip
        super()._launch(host, settings, "-m", "torch.distributed.run", *options)
