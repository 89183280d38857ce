"""Where servers and gloo listen, and which workers are one site: those of one node.

tests/integration/test_cluster.py has gloo listen on two machines.
"""

import os
import socket
from hashlib import sha256
from pathlib import Path

import pytest

from taugrad.compressors.exchange import addresses
from taugrad.platform import ports
from taugrad.platform.launching.worker import process_group
from taugrad.platform.launching.worker.process_group import bind_gloo_to, interface_of, with_sites
from taugrad.platform.spec import RunSpec


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


def test_a_free_port_is_not_ephemeral():
    first, last = map(int, EPHEMERAL.read_text().split())
    if first <= 32_767:
        pytest.skip(f"this machine gives out ports from {first} on")
    chosen = {ports.free_port() for _ in range(50)}
    assert len(chosen) > 40  # two commands at a time do not get the same one
    assert not [port for port in chosen if first <= port <= last]
    assert not [port for port in chosen if 10_002 <= port <= 19_999]  # Ray's workers listen there


# Sites


NODES = ["10.0.0.2", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"]


@pytest.fixture
def five_workers(monkeypatch):
    """This one is worker 3; the others' addresses come as the group's store would bring them."""

    def told(digest: bytes, group: object) -> list[bytes]:
        digests = [sha256(place.encode()).digest() for place in NODES]
        assert digests[3] == digest
        return digests

    monkeypatch.setattr(process_group, "own_address", lambda: NODES[3])
    monkeypatch.setattr(addresses, "all_gather_bytes", told)


def spec(**sync: object) -> RunSpec:
    return RunSpec.model_validate(
        {"workers": {"count": len(NODES)}, "sync": {"mode": "gradients", **sync}, "compressor": "wgt(0.01)"}
    )


def test_the_workers_of_a_node_are_a_site_by_default(five_workers):
    result = with_sites(spec(pattern="hierarchical"))
    assert result.sync.model_dump()["sites"] == ((0, 2), (1, 4), (3,))
    assert result.model_copy(update={"sync": spec().sync}) == spec()


def test_sites_that_are_named_or_not_asked_for_stay(five_workers):
    for sync in {"pattern": "hierarchical", "sites": [[0, 1, 2, 3], [4]]}, {"pattern": "ring"}:
        assert with_sites(spec(**sync)) == spec(**sync)
