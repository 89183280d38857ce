"""Ports for servers that take seconds until they listen."""

from pathlib import Path

import pytest

from taugrad.platform import ports

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_is_none_that_the_system_gives_to_whoever_asks_for_any():
    first, last = map(int, EPHEMERAL.read_text().split())
    if first <= 32_767:
        pytest.skip(f"this machine gives out ports from {first} on")
    chosen = {ports.free_port() for _ in range(50)}
    assert len(chosen) > 40  # two commands at a time do not get the same one
    assert not [port for port in chosen if first <= port <= last]
    assert not [port for port in chosen if 10_002 <= port <= 19_999]  # Ray's workers listen there
