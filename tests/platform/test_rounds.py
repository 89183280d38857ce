"""Patterns without training: what is damaged, refused, skipped or late."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from taugrad.compressors import CorruptMessage
from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.layout import cut
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.exchange import Exchange
from taugrad.compressors.exchange.local_rounds import Agreed, Fragment
from taugrad.compressors.exchange.lockstep import run_lockstep
from taugrad.compressors.exchange.patterns.allgather import AllGather
from taugrad.compressors.exchange.patterns.base import ExchangeRecord, Pattern
from taugrad.compressors.exchange.patterns.ring import Ring
from taugrad.compressors.exchange.patterns.sharded import Sharded
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.exchange.worker_group import WorkerGroup
from taugrad.compressors.local_fields import LocalFields
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.synchronization.synchronization import Synchronization
from taugrad.platform.tasks.builtin import ClassificationTask

SIZES = {"head": 7, "body": 301, "empty": 0, "tail": 64}
PARAMETERS = sum(SIZES.values())
PATTERNS = ["allgather", "hierarchical", "ring", "server", "sharded"]


def pattern(name: str, line: str, rank: int, workers: int) -> Pattern:
    method = read_config(line)
    worker = Worker(CPU, rank, workers)
    match name:
        case "allgather":
            return AllGather(method, worker, SIZES)
        case "hierarchical":
            halves = Sites.of([r for r in (range(0, workers, 2), range(1, workers, 2)) if r], workers)
            return AllGather(method, worker, SIZES, sites=halves)
        case "ring":
            return Ring(method, worker, SIZES)
        case _:
            owners = 1 if name == "server" else workers
            return Sharded(method, method, worker, SIZES, cut(SIZES, owners))


def gradients(workers: int) -> list[list[Tensor]]:
    rng = np.random.default_rng(workers)
    return [
        [torch.from_numpy(rng.standard_normal(n).astype(np.float32)) for n in SIZES.values()]
        for _ in range(workers)
    ]


def exchange(patterns: list[Pattern], given: list[list[Tensor]], **about: Any) -> Traffic:
    coroutines, records, traffic = [], [], Traffic(len(patterns))
    for carrier, pattern, gradients in zip(in_memory(len(patterns)), patterns, given, strict=True):
        averaging = Averaging(carrier, pattern, list(SIZES))
        pending = averaging.begin(gradients, **about)
        coroutines.append(averaging.complete(pending))
        records.append(pending.record)
    run_lockstep(coroutines)
    for record in records:
        traffic.add(record.traffic)
    return traffic


@pytest.mark.parametrize("name", PATTERNS)
def test_a_damaged_message_is_refused_and_its_sender_named(name):
    workers = 3
    patterns = [pattern(name, "strom(0.5)", rank, workers) for rank in range(workers)]
    whole = patterns[1].rounds

    def damaged(*arguments: Any) -> Any:
        rounds = whole(*arguments)
        first = next(rounds)
        for payload, _ in first.sends:
            payload[-1] ^= 1
        received = yield first
        while True:
            try:
                received = yield rounds.send(received)
            except StopIteration as end:
                return end.value

    patterns[1].rounds = damaged  # type: ignore[method-assign]
    with pytest.raises(CorruptMessage, match="the message of worker 1"):
        exchange(patterns, gradients(workers))


@pytest.mark.parametrize("name", PATTERNS)
def test_bits_by_the_gradients_rms_follow_what_the_pattern_is_told(name):
    """N = log2(G + c0) + floor (Oland-Raj, section 3.2), G of gradients and not of what is sent."""
    workers, floor = 3, 2
    sizes = {}
    for rms in (0.0, 15.0, 255.0):
        line = f"entropy(form='rms', floor={floor}, decay=0)"
        patterns = [pattern(name, line, rank, workers) for rank in range(workers)]
        traffic = exchange(patterns, gradients(workers), rms=dict.fromkeys(SIZES, rms))
        sizes[rms] = traffic.sums.paper_bits
    compressed = workers + (name not in ("allgather", "hierarchical", "ring"))
    for rms, bits in sizes.items():
        assert bits == compressed * PARAMETERS * (np.log2(rms + 1) + floor)


def simulated(workers: int, mode: str) -> tuple[Synchronization, dict[str, Any]]:
    """Simulated workers, and what they would save."""
    of = {"mode": "gradients", "pattern": mode} if mode == "ring" else {"mode": mode}
    sync = {"mode": "simulated", "of": of}
    spec = RunSpec.model_validate({"workers": {"count": workers}, "compressor": "wgt(0.1)", "sync": sync})
    made, _ = build_synchronization(spec, torch.nn.Linear(3, 2), ClassificationTask(), torch.device("cpu"))
    return made, made.worker_state()


@pytest.mark.parametrize("mode", ["ring", "weights"])
def test_workers_states_are_taken_by_the_same_workers_alone(mode):
    two, averaging = simulated(2, mode)
    shared = two.shared_state()
    two.load(shared, averaging)
    _, threes = simulated(3, mode)
    with pytest.raises(ValueError, match=r"states of ranks \[0, 1, 2\] of 3 workers, this is rank 0 of 2"):
        two.load(shared, threes)
    unsent = averaging["patterns"] if mode == "ring" else averaging["local"]["fragments"][0]["unsent"]
    everybody = unsent["ranks"]
    unsent["ranks"] = {"1": everybody["1"]}
    with pytest.raises(ValueError, match=r"states of ranks \[1\] of 2 workers"):
        two.load(shared, averaging)
    unsent["ranks"] = everybody
    del unsent["version"]
    with pytest.raises(ValueError, match="version None of workers' states; this program reads 6"):
        two.load(shared, averaging)


def test_a_ring_whose_second_pass_is_skipped_keeps_both_passes_gradients():
    """Two exchanges in one step: what was sent in both goes back."""
    workers, sizes = 3, {"w": 6}
    rings = [
        Ring(read_config("wgt(0.5, nonfinite='skip')"), Worker(CPU, r, workers), sizes)
        for r in range(workers)
    ]
    for given in ([torch.ones(6) for _ in range(workers)], [torch.full((6,), 10.0) for _ in range(workers)]):
        if given[0][0] == 10:
            given[1][3] = torch.nan
        exchanges = [
            Exchange(ring, ExchangeRecord(Traffic(workers)), carrier, "tag")
            for ring, carrier in zip(rings, in_memory(workers), strict=True)
        ]
        for one, tensor in zip(exchanges, given, strict=True):
            one.start([tensor])
        while not all(one.payloads.done() for one in exchanges):
            for one in exchanges:
                if not one.payloads.done():
                    one.go_on(waits=False)
    for rank, ring in enumerate(rings):
        ring.put_back()
        expected = torch.full((6,), 11.0)
        if rank == 1:
            expected[3] = 1
        assert torch.equal(ring.feedback.residuals["w"], expected)


@pytest.mark.parametrize("name", ["ring", "sharded"])
def test_a_refusal_of_a_parameter_that_there_is_not_is_corrupt(name):
    workers = 2
    patterns = [pattern(name, "wgt(0.5)", rank, workers) for rank in range(workers)]
    given = gradients(workers)
    given[1][1][300] = torch.nan
    averagings = [
        Averaging(carrier, each, ["head"]) for carrier, each in zip(in_memory(workers), patterns, strict=True)
    ]
    exchanges = [one.begin(tensors) for one, tensors in zip(averagings, given, strict=True)]
    with pytest.raises(CorruptMessage, match="a refusal of parameter 1"):
        run_lockstep([a.complete(exchange) for a, exchange in zip(averagings, exchanges, strict=True)])


def test_a_damaged_sum_of_a_ring_names_who_compressed_it():
    workers = 3
    rings = [pattern("ring", "wgt(0.5)", rank, workers) for rank in range(workers)]
    payloads: dict[int, Any] = {}
    for number in range(workers):
        compressor = rings[0].compressors[number]
        zeros = [torch.zeros(part.elements) for part in compressor.shard.slices]
        payloads[number] = compressor.compress(zeros, 0).payload
    payloads[2] = payloads[2].copy()
    payloads[2][-1] ^= 1
    with pytest.raises(CorruptMessage, match="the message of worker 1"):  # chunk 2 ends with worker 1
        rings[0].assemble(payloads)


def test_weights_that_a_ring_sends_late_are_those_of_the_sending():
    """The ring compresses all chunks but one in later rounds, while the worker goes on."""
    workers, fields = 2, LocalFields(exchange="weights", pattern="ring", delay_steps=1)
    models = [[torch.full((40,), 4.0)] for _ in range(workers)]
    fragments = []
    for carrier, parameters in zip(in_memory(workers), models, strict=True):
        ring = Ring(read_config("wgt(0.5, decay=0)"), Worker(CPU, carrier.rank, workers), {"w": 40})
        agreed = Agreed.begin([torch.zeros(40)], {}, fields)
        fragments.append(Fragment(WorkerGroup(carrier), ring, "tag", [0], agreed, parameters, fields))
    exchanges = [fragment.send(1) for fragment in fragments]
    for (weights,) in models:
        weights.fill_(8.0)  # an optimizer's step
    one, other = run_lockstep(
        [each.averaging.complete(sent) for each, sent in zip(fragments, exchanges, strict=True)]
    )
    assert torch.equal(one, torch.full((40,), 4.0))
    assert torch.equal(one, other)
