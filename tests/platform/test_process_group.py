"""Where servers and gloo listen; tests/integration/test_cluster.py has gloo do so on two machines."""

import os
import socket
from pathlib import Path

import pytest

from taugrad.platform import ports
from taugrad.platform.launching.process_group import bind_gloo_to, interface_of


def test_the_interface_of_an_address():
    assert interface_of("127.0.0.1") in {name for _, name in socket.if_nameindex()}
    assert interface_of("192.0.2.1") is None  # of no machine (RFC 5737)


def test_gloo_listens_there_unless_the_user_says_where(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # so that it is put back
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    bind_gloo_to("192.0.2.1")
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    bind_gloo_to("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == interface_of("127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    bind_gloo_to("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_is_none_that_the_system_gives_to_whoever_asks_for_any():
    first, last = map(int, EPHEMERAL.read_text().split())
    if first <= 32_767:
        pytest.skip(f"this machine gives out ports from {first} on")
    chosen = {ports.free_port() for _ in range(50)}
    assert len(chosen) > 40  # two commands at a time do not get the same one
    assert not [port for port in chosen if first <= port <= last]
    assert not [port for port in chosen if 10_002 <= port <= 19_999]  # Ray's workers listen there
