"""A network for as long as a `with` lasts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import TypeAdapter

from .keeper import addresses_of
from .namespaces import NetworkError, ip, name_of, remove_all_of
from .probe import Probe, probe
from .topology import Topology

_ROOT = Path(__file__).resolve().parents[2]
_READY_S = 30.0
_GONE_S = 30.0
PRIVATE = 'mkdir -p /tmp/ray && mount -t tmpfs ray /tmp/ray && mount -t tmpfs shm /dev/shm && exec "$@"'
"""Gives a command folders of Ray's and shared memory of its own, as another machine has."""


def why_not(topology: Topology | None = None) -> str:
    """Why no network can be made here; empty if one can."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces need Linux and root"
    if missing := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"{' and '.join(missing)} not found; Debian's iproute2 has them"
    if (topology is None or not topology.in_kernel) and not os.path.exists("/dev/net/tun"):
        return "delay and loss need /dev/net/tun"
    return ""


@dataclass(frozen=True)
class Host:
    """One of a network's machines."""

    number: int
    namespace: str
    address: str

    def command(self, arguments: Sequence[str], *, own_folders: bool = False) -> list[str]:
        """What runs a command there; with `own_folders`, /tmp/ray and /dev/shm are empty there."""
        inside = ["sh", "-c", PRIVATE, "sh", *arguments] if own_folders else [*arguments]
        return ["ip", "netns", "exec", self.namespace, *inside]

    def popen(self, arguments: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Starts a command there; options are those of `subprocess.Popen`."""
        return subprocess.Popen(self.command(arguments), **options)

    def run(self, arguments: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[Any]":
        """Runs a command there; options are those of `subprocess.run`."""
        return subprocess.run(self.command(arguments), check=options.pop("check", True), **options)


class Network:
    """Hosts and what joins them. What runs in the hosts ends with it.

    Attributes:
        hosts: addresses 10.88.0.1 and on, seen by one another alone.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.hosts: list[Host] = []
        self._keeper: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        """Makes the network; raises NetworkError: none can be made here."""
        if reason := why_not(self.topology):
            raise NetworkError(f"no network can be made here: {reason}")
        keeper = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.network.keeper",
                TypeAdapter(Topology).dump_json(self.topology),
            ],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for who asked: it may still need the network
        )
        self._keeper = keeper
        assert keeper.stdout is not None
        if keeper.stdout.readline() != "ready\n":
            _, error = keeper.communicate(timeout=_READY_S)
            remove_all_of(keeper.pid)
            raise NetworkError(f"no network can be made here: {error.strip().splitlines()[-1:] or ''}")
        addresses = addresses_of(len(self.topology.links))
        self.hosts = [
            Host(number, name_of(keeper.pid, f"h{number}"), address)
            for number, address in enumerate(addresses)
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            keeper.communicate(timeout=_GONE_S)  # closes its input
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
        remove_all_of(keeper.pid)

    def unplug(self, number: int) -> None:
        """Has a host's link carry nothing, as if its cable were out; nobody is told.

        Raises ValueError: the network has delays or losses; NetworkError: it has ended.
        """
        self._set_port(number, "down")

    def plug_in(self, number: int) -> None:
        """Has it carry again what it did; as `unplug`."""
        self._set_port(number, "up")

    def _set_port(self, number: int, state: str) -> None:
        if not self.topology.in_kernel:
            raise ValueError("links with delays or losses have no port: change their loss")
        assert self._keeper is not None
        ip(f"-n {name_of(self._keeper.pid, 'middle')} link set port{number} {state}")

    def probe(self, source: int = 0, to: int = 1) -> Probe:
        """Measures rate, delay and loss from one host to another."""
        return probe(self.hosts[source].command, self.hosts[to].command, self.hosts[to].address)
