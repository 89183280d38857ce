"""Between workers: carriers of one process, addresses, sites, and what those who disagree are told.

The mesh between processes is in ddp_mesh.py; that workers find out that they disagree, in ddp_training.py.
"""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cases import in_turn
from hypothesis import given
from hypothesis import strategies as st
from workbench import Worker as OneWorker
from workbench import other_defaults, random_gradients

from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.errors import PeerLost
from taugrad.compressors.exchange import addresses as addressing
from taugrad.compressors.exchange.addresses import listening_address, reachable_address, transport_of
from taugrad.compressors.exchange.agreement import difference, flattened
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.carrier import Arrivals, in_memory
from taugrad.compressors.exchange.exchange import Exchange
from taugrad.compressors.exchange.lockstep import Coroutine, run, run_lockstep
from taugrad.compressors.exchange.mesh import most_bytes_of
from taugrad.compressors.exchange.patterns import pattern_for
from taugrad.compressors.exchange.patterns.allgather import AllGather
from taugrad.compressors.exchange.patterns.base import ExchangeRecord
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops import ops_for


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
        assert [int(future.result()[0]) for future in here_now] == list(range(len(here_now)))


def test_what_arrives_without_being_asked_for_is_taken_with_its_sender() -> None:
    carriers = in_memory(3)
    carriers[1].send(0, "all", np.array([1], np.uint8))
    arrivals = Arrivals(carriers[0], "all")
    carriers[2].send(0, "all", np.array([2], np.uint8))
    carriers[1].send(0, "all", np.array([3], np.uint8))
    assert [(source, int(payload[0])) for source, payload in arrivals.take()] == [(1, 1), (2, 2), (1, 3)]
    assert arrivals.take(0) == []


def test_rounds_end_as_soon_as_one_of_the_peers_is_lost() -> None:
    here, *_ = in_memory(3)

    pattern = AllGather(read_config("fp16"), Worker(ops_for(torch.device("cpu")), 0, 3), {"w": 4})
    exchange = Exchange(pattern, ExchangeRecord(Traffic(3)), here, "tag", lambda call: call())
    exchange.start([torch.ones(4)])
    here._mark_lost(2, PeerLost(2, "is gone"))  # worker 1 has sent nothing yet
    assert exchange.payloads.done()
    with pytest.raises(PeerLost, match="worker 2 is gone"):
        exchange.refusals(["w"])


def test_an_interface_that_gloo_is_told_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert listening_address() == "127.0.0.1"
    assert reachable_address(["127.0.0.1", "10.0.0.2"], ["a", "b"], 0) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(ValueError, match="GLOO_SOCKET_IFNAME = none0"):
        listening_address()


@pytest.mark.usefixtures("alone")
def test_a_store_in_memory_is_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert listening_address() == "127.0.0.1"


SEVERAL_HOSTS = {
    "all on one machine": (["127.0.0.1", "127.0.0.1"], ["a", "a"], "127.0.0.1"),
    "the store is reached from elsewhere": (["fd77::1", "fd77::2"], ["a", "b"], "fd77::1"),
    "Debian's own name is 127.0.1.1": (["127.0.1.1", "10.0.0.2"], ["a", "b"], "10.0.0.1"),
    "an address without a route": (["::1", "10.9.0.9", "10.0.0.2"], ["a", "b", "c"], "10.0.0.1"),
    "a file as store, on several machines": (["127.0.0.1", "127.0.0.1"], ["a", "b"], "10.0.0.1"),
}
"""The addresses that workers know alone, their hosts, and the address on which worker 0 has to listen."""


@in_turn(("addresses", "hosts", "address"), SEVERAL_HOSTS.values())
def test_a_worker_listens_where_all_others_reach_it(
    addresses: list[str], hosts: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(addressing, "source_address", {"10.0.0.2": "10.0.0.1"}.get)
    monkeypatch.setattr(addressing, "_addresses_of", lambda _: ["10.0.0.1"])
    monkeypatch.setattr(addressing, "_resolved", lambda _: ["127.0.1.1", "10.0.0.1"])
    assert reachable_address(addresses, hosts, 0) == address


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


@pytest.mark.parametrize("pattern", ["allgather", "ring", "sharded"])
def test_a_mean_is_float32_whatever_torchs_defaults_are(pattern: str) -> None:
    method, gradients = read_config("linear(8)"), [torch.randn(40), torch.randn(60)]

    def mean() -> list[bytes]:
        workers = [Worker(ops_for(torch.device("cpu")), rank, 2) for rank in range(2)]
        patterns = [pattern_for(pattern, method, method, worker, {"w": 40, "v": 60}) for worker in workers]
        averagings = [Averaging(*of, "wv") for of in zip(in_memory(2), patterns, strict=True)]
        begun = [averaging.begin([tensor.clone() for tensor in gradients]) for averaging in averagings]
        means = run_lockstep([a.complete(exchange) for a, exchange in zip(averagings, begun, strict=True)])
        averagings[0].reshard([averaging.worker_state() for averaging in averagings])
        return [tensor.numpy().tobytes() for tensor in (*means, *patterns[0].unsent())]

    expected = mean()
    for dtype in (torch.float64, torch.bfloat16):
        with other_defaults(dtype):
            assert mean() == expected


# Sites, and the way of each worker's message to all others.


def partitions(workers: int, seeds: range) -> list[list[list[int]]]:
    """Random ones, ranks in any order."""
    results = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        cuts = np.sort(rng.choice(np.arange(1, workers), rng.integers(0, workers), replace=False))
        ranks = rng.permutation(workers).tolist()
        results.append([ranks[low:high] for low, high in pairwise([0, *cuts.tolist(), workers])])
    return results


CASES = [(workers, ranks) for workers in (1, 2, 3, 5, 8, 13) for ranks in partitions(workers, range(6))]


@in_turn(("workers", "ranks"), CASES)
def test_everybody_gets_each_message_once_and_it_goes_to_each_site_once(
    workers: int, ranks: list[list[int]]
) -> None:
    sites = Sites.of(ranks, workers)
    site_of = {rank: number for number, site in enumerate(ranks) for rank in site}
    sendings = 0
    for source in range(workers):
        hops = [(by, to) for start, by, to in sites.hops if start == source]
        assert sorted(to for _, to in hops) == [rank for rank in range(workers) if rank != source]
        crossing = [(by, to) for by, to in hops if site_of[by] != site_of[to]]
        assert len(crossing) == len(ranks) - 1
        assert {by for by, _ in crossing} <= {source}
        # Who hands it on has it from the source itself: two hops at most.
        assert {by for by, _ in hops} <= {source} | {to for by, to in hops if by == source}
        sendings += len({source} | {by for by, _ in hops})
    assert sites.sendings == sendings
    for there in ranks:  # messages that come from another site are spread
        for site in (rank for rank in ranks if rank is not there):
            straight = [to for source, by, to in sites.hops if source == by and source in site]
            got = [straight.count(rank) for rank in there]
            assert max(got) - min(got) <= 1


def test_sites_are_alike_in_whatever_order_they_are_given() -> None:
    assert Sites.of([[3, 2], [1, 0]], 4) == Sites.of([[0, 1], [2, 3]], 4)
    assert Sites.by_place(["b", "a", "b", "a"]) == Sites.of([[0, 2], [1, 3]], 4)
    assert str(Sites.of([[2], [1, 0]], 3)) == "[[0, 1], [2]]"


@in_turn(
    ("ranks", "problem"),
    [
        ([[0, 1]], "2, 3 in no site"),
        ([[0, 1], [1, 2, 3]], "1 in more than one place"),
        ([[0, 1], [2, 3, 4]], "4 of no worker"),
        ([[0, 1, 2, 3], []], "a site without workers"),
        ([], "0, 1, 2, 3 in no site"),
    ],
)
def test_what_is_no_partition_is_refused(ranks: list[list[int]], problem: str) -> None:
    with pytest.raises(ValueError, match=rf"^sites = .*: {problem}; with 4 workers each of the ranks 0 to 3"):
        Sites.of(ranks, 4)


# What workers that disagree are told.

ALIKE = {"kind": "wgt", "tau": "0.1", "reduction": "mean"}
SUM = ALIKE | {"reduction": "sum"}


@in_turn(
    ("descriptions", "told"),
    [
        ([ALIKE, SUM, ALIKE], "ranks 0, 2: reduction = mean, rank 1: reduction = sum"),
        ([SUM, *[ALIKE] * 7], "rank 0: reduction = sum, ranks 1, 2, 3, 4 and 3 more: reduction = mean"),
        ([ALIKE, {"kind": "wgt", "tau": "0.1"}], "rank 0: reduction = mean, rank 1: no reduction"),
        (
            [{"tau": "1", "a": "1", "b": "1", "c": "1"}, {"tau": "2", "a": "2", "b": "2", "c": "2"}],
            "rank 0: tau = 1, rank 1: tau = 2; rank 0: a = 1, rank 1: a = 2; "
            "rank 0: b = 1, rank 1: b = 2; and 1 more",
        ),
        ([{"names": "x" * 200}, {"names": "y"}], f"rank 0: names = {'x' * 97}..., rank 1: names = y"),
    ],
)
def test_a_difference_names_the_field_and_each_side_s_value(descriptions, told):
    assert difference(dict(enumerate(descriptions))) == told


def test_every_field_of_a_method_is_described_and_its_kind_comes_first():
    one = flattened(read_config("wgt(density(0.01, every=10), clip=clip(2)) | quantile(4) | golomb_rice"))
    assert next(iter(one)) == "kind"
    assert [one[field] for field in ("kind", "tau.kind", "tau.target")] == ["wgt", "density", "0.01"]
    assert (one["quantize.kind"], one["codec"], one["reduction"]) == ("quantile", "golomb_rice", "mean")
    other = flattened(read_config("wgt(density(0.01, every=10), clip=clip(3)) | quantile(4) | golomb_rice"))
    assert {field for field in one if one[field] != other[field]} == {"clip.every"}


def test_simulated_workers_share_results_that_are_the_same_on_all():
    """Worker 0 leaves after the first of three results; the others have waited for its message by then."""
    carriers, called = in_memory(3), []

    def worker(rank: int) -> Coroutine[list[object]]:
        results = []
        for number in range(1 if rank == 0 else 3):
            for other in carriers[rank].others:
                carriers[rank].send(other, "number", np.array([number], np.uint8))
            yield None
            sources = [1, 2] if number else [0, 1, 2]
            for source in set(sources) - {rank}:
                assert carriers[rank].receive(source, "number").result(timeout=0) == [number]
            results.append((yield lambda number=number: called.append((rank, number)) or object()))
        return results

    (first,), second, third = run_lockstep([worker(rank) for rank in range(3)])
    assert second == third
    assert second[0] is first
    assert called == [(0, 0), (1, 1), (1, 2)]


def test_what_fails_for_one_worker_fails_for_all():
    def worker(rank: int) -> Coroutine[None]:
        yield None
        if rank == 1:
            raise PeerLost(1, "gone")
        yield lambda: None

    with pytest.raises(PeerLost, match="gone"):
        run_lockstep([worker(rank) for rank in range(3)])
    with pytest.raises(PeerLost, match="gone"):
        run(worker(1))
    assert run(worker(0)) is None


@pytest.mark.parametrize("line", ["quantile(bits=16, block=0)", "quantile(bits=13)", "wgt(0.1)"])
def test_no_message_is_longer_than_a_mesh_takes(line: str) -> None:
    """Parameters that are shorter than their table of means, too."""
    sizes = [5] * 30
    (payload,) = OneWorker(line, sizes).step(random_gradients(0, sizes)).payloads
    assert len(payload) <= most_bytes_of(torch.empty(size, device="meta") for size in sizes)
