"""Carriers between simulated workers, and addresses; the mesh between processes is in ddp_mesh.py."""

import pickle

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange.addresses import own_address, transport_of
from taugrad.compressors.exchange.arrivals import Arrivals
from taugrad.compressors.exchange.carrier import in_memory


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_in_memory_each_tag_has_an_order_of_its_own(course: list[tuple[str, bool]]) -> None:
    """Whether a message is asked for before it is sent, or after."""
    here, there = in_memory(2)
    sent = {"a": 0, "b": 0}
    asked = {"a": [], "b": []}
    for tag, sends in course:
        if sends:
            here.send(1, tag, np.array([sent[tag]], np.uint8))
            sent[tag] += 1
        else:
            asked[tag].append(there.receive(0, tag))
    for tag, futures in asked.items():
        here_now = [future for future in futures if future.done()]
        assert len(here_now) == min(len(futures), sent[tag])
        assert [int(each.result()[0]) for each in here_now] == list(range(len(here_now)))


def test_what_arrives_without_being_asked_for_is_taken_with_its_sender() -> None:
    carriers = in_memory(3)
    carriers[1].send(0, "all", np.array([1], np.uint8))
    arrivals = Arrivals(carriers[0], "all")
    carriers[2].send(0, "all", np.array([2], np.uint8))
    carriers[1].send(0, "all", np.array([3], np.uint8))
    assert [(source, int(payload[0])) for source, payload in arrivals.take()] == [(1, 1), (2, 2), (1, 3)]
    assert arrivals.take(0) == []


def test_it_listens_where_gloo_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert own_address() == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(ValueError, match="GLOO_SOCKET_IFNAME = none0"):
        own_address()
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert own_address() == "127.0.0.1"


@pytest.mark.parametrize(
    ("backends", "place"),
    [
        ("cuda:nccl", "cuda"),  # as nccl, or none on a machine with a GPU
        ("cpu:gloo,cuda:nccl", "cpu"),
        ("cuda:nccl,cpu:gloo", "cpu"),
        ("cpu:gloo,cuda:gloo,mps:gloo", "cpu"),
    ],
)
def test_a_message_goes_from_the_host_where_the_group_takes_it(
    backends: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda _: backends)
    assert transport_of(None, torch.device("cuda")).type == place


def test_a_lost_peer_crosses_processes() -> None:
    lost = pickle.loads(pickle.dumps(PeerLost(1, "is gone")))
    assert (lost.worker, str(lost)) == (1, "worker 1 is gone")
