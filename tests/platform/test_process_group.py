"""Where gloo listens; tests/integration/test_cluster.py has it do so on two machines."""

import os
import socket

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
