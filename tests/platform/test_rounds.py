"""Patterns without training: what goes in comes out or stays in a residual."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from torch import Tensor
from unsent import unsent_by

from taugrad.compressors import CorruptMessage
from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.layout import cut
from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.lockstep import run_lockstep
from taugrad.compressors.exchange.patterns.allgather import AllGather
from taugrad.compressors.exchange.patterns.base import Pattern, RefusedUpdate
from taugrad.compressors.exchange.patterns.partial_sums import Ring, Sharded
from taugrad.compressors.exchange.sites import Sites
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.build import build_synchronization
from taugrad.platform.synchronization.synchronization import Synchronization
from taugrad.platform.tasks.builtin import ClassificationTask

SIZES = {"head": 7, "body": 301, "empty": 0, "tail": 64}
PARAMETERS = sum(SIZES.values())
PATTERNS = ["allgather", "hierarchical", "ring", "server", "sharded"]


def pattern(name: str, line: str, rank: int, workers: int, back: str | None = None) -> Pattern:
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
            return Sharded(method, read_config(back or line), worker, SIZES, cut(SIZES, owners))


def gradients(workers: int, step: int) -> list[list[Tensor]]:
    rng = np.random.default_rng([workers, step])
    return [
        [torch.from_numpy(rng.standard_normal(n).astype(np.float32)) for n in SIZES.values()]
        for _ in range(workers)
    ]


def exchange(
    patterns: list[Pattern], given: list[list[Tensor]], step: int
) -> tuple[Tensor | RefusedUpdate, Traffic]:
    coroutines, records, traffic = [], [], Traffic(len(patterns))
    for carrier, pattern, gradients in zip(in_memory(len(patterns)), patterns, given, strict=True):
        averaging = Averaging(carrier, pattern, list(SIZES))
        averaging.done = step
        pending = averaging.begin(gradients)
        coroutines.append(averaging.complete(pending))
        records.append(pending.record)
    mean, *_ = run_lockstep(coroutines)
    for record in records:
        traffic.add(record.traffic)
    return mean, traffic


def synchronize(patterns: list[Pattern], given: list[list[Tensor]], step: int) -> tuple[Tensor, Traffic]:
    mean, traffic = exchange(patterns, given, step)
    if isinstance(mean, RefusedUpdate):
        raise ValueError(mean)
    for pattern in patterns:
        pattern.commit()
    return mean, traffic


LINES = ["none", "wgt(0.7)", "strom(1.5)", "linear(3, block=50)", "topk(0.05) | fp8"]


@in_turn("line, workers", [*product(LINES, [1, 3]), ("none", 5), ("none", 32)])
@pytest.mark.parametrize("name", PATTERNS)
def test_what_was_applied_and_what_is_kept_add_up_to_the_gradients(name, workers, line):
    """In every pattern, a second compression's residual included; it holds parts of a mean."""
    patterns = [pattern(name, line, rank, workers) for rank in range(workers)]
    applied, summed = torch.zeros(PARAMETERS).double(), torch.zeros(PARAMETERS).double()
    for step in range(1 if line == "none" else 6):
        given_ = gradients(workers, step)
        applied += synchronize(patterns, given_, step)[0].double() * workers
        summed += torch.stack([torch.cat(tensors) for tensors in given_]).double().sum(0)
    kept = sum(unsent_by(pattern) for pattern in patterns)
    torch.testing.assert_close(applied + kept, summed, rtol=0, atol=5e-5 * (workers + 1))
    assert ((applied - summed).abs().max() > 0.1) == (line != "none")


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
        exchange(patterns, gradients(workers, 0), 0)


@pytest.mark.parametrize("name", PATTERNS)
def test_bits_by_the_gradients_rms_follow_what_the_pattern_is_told(name):
    """N = log2(G + c0) + floor (Oland-Raj, section 3.2), G of gradients and not of what is sent."""
    workers, floor = 3, 2
    sizes = {}
    for rms in (0.0, 15.0, 255.0):
        line = f"entropy(form='rms', floor={floor}, decay=0)"
        patterns = [pattern(name, line, rank, workers) for rank in range(workers)]
        for pattern_ in patterns:
            pattern_.rms = dict.fromkeys(SIZES, rms)
        _, traffic = synchronize(patterns, gradients(workers, 0), 0)
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
    with pytest.raises(ValueError, match="version None of workers' states; this program reads 5"):
        two.load(shared, averaging)
