"""Process groups on hosts with IPv6 alone, and a group made anew by a worker that has survived another."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import process_group_worker
import pytest
from forked import run_workers
from needs import missing

from taugrad.compressors import PeerLost
from taugrad.compressors.exchange import addresses

ADDRESSES = ("fd77::1", "fd77::2")
TIMEOUT_S = 120
SCRIPT = process_group_worker.__file__


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """The names of two network namespaces with a link between them, without IPv4; they end with the test."""
    names = [f"tgsix{os.getpid()}-{rank}" for rank in range(2)]
    commands = [
        *(f"ip netns add {name}" for name in names),
        f"ip link add veth netns {names[0]} type veth peer name veth netns {names[1]}",
    ]
    for name, address in zip(names, ADDRESSES, strict=True):
        commands += [
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set veth up",
            f"ip -n {name} -6 addr add {address}/64 dev veth nodad",
        ]
    try:
        for command in commands:
            try:
                subprocess.run(command.split(), check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                missing(f"no network namespaces can be made here: {command}: {error}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_workers_on_hosts_with_ipv6_alone_connect(hosts: list[str], tmp_path: Path) -> None:
    names = tmp_path / "hosts"
    lines = [f"{address} {host}\n" for address, host in zip(ADDRESSES, hosts, strict=True)]
    names.write_text("".join(["::1 localhost\n", *lines]))
    environment = {name: value for name, value in os.environ.items() if name != "GLOO_SOCKET_IFNAME"}
    workers = []
    for rank, host in enumerate(hosts):
        inside = f'hostname {host} && mount --bind {names} /etc/hosts && exec "$@"'
        command = [sys.executable, SCRIPT, "connect", str(rank), "[fd77::1]", str(tmp_path / str(rank))]
        isolated = ["ip", "netns", "exec", host, "unshare", "-m", "-u", "sh", "-c", inside, "sh", *command]
        workers.append(subprocess.Popen(isolated, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [worker.communicate(timeout=TIMEOUT_S)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], errors
    for rank, address in enumerate(ADDRESSES):
        assert (tmp_path / str(rank)).read_text() == f"tcp://[{address}] [{1 - rank}]"


def test_a_group_made_anew_by_a_survivor_and_a_fresh_worker_connects(tmp_path: Path) -> None:
    run_workers(Path(SCRIPT), lambda worker: ("regroup", worker, tmp_path), 3, timeout_s=TIMEOUT_S)


def test_a_store_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()

    class HangingStore:
        def __init__(self, *_: object) -> None:
            pass

        def add(self, *_: object) -> int:
            return int(ended.wait())

    monkeypatch.setattr(addresses, "PrefixStore", HangingStore)
    monkeypatch.setattr(addresses, "default_store", lambda: None)
    monkeypatch.setattr(addresses, "timeout_of", lambda _: timedelta(seconds=0.05))
    monkeypatch.setattr(addresses, "_MARGIN_S", 0.0)
    monkeypatch.setattr(addresses.dist, "get_rank", lambda _: 1)
    monkeypatch.setattr(addresses.dist, "get_world_size", lambda _: 2)
    with pytest.raises(PeerLost, match=r"nothing for 0\.05 s: the process group's store hangs"):
        addresses.all_gather_bytes(b"", SimpleNamespace(group_name="all"))  # type: ignore[arg-type]
    ended.set()
