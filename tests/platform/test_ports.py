"""Ports for servers that take seconds until they listen."""

import socket
from pathlib import Path

import pytest

from taugrad.platform import ports

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_is_none_that_the_system_gives_to_whoever_asks_for_any() -> None:
    first, last = map(int, EPHEMERAL.read_text().split())
    if first <= 32_767:
        pytest.skip(f"this machine gives out ports from {first} on")
    chosen = {ports.free_port() for _ in range(50)}
    assert len(chosen) > 40  # two commands at a time do not get the same one
    assert not [port for port in chosen if first <= port <= last]
    assert not [port for port in chosen if 10_002 <= port <= 19_999]  # Ray's workers listen there


def test_a_port_that_is_taken_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.LOOPBACK, ports.free_port())) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_ATTEMPTS", 1)
        monkeypatch.setattr(ports, "_FIRST", taken)
        monkeypatch.setattr(ports, "_LAST", taken)
        with pytest.raises(OSError, match=f"from {taken} to {taken} is free"):
            ports.free_port()
    assert ports.free_port() == taken
