"""Exchange patterns other than all-gather in the hook, against simulated workers; see ddp.py."""

from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from ddp import (
    SIZES,
    STEPS,
    TINY_BUCKETS,
    Run,
    assert_alike,
    assert_same,
    everyone,
    failure_of,
    gradients,
    new_group,
    refusal,
    scenario,
)
from ddp_methods import Branches
from ddp_sites import HandedOver
from torch import Tensor, nn

from taugrad.compressors import CompressionState, NonFiniteGradient
from taugrad.compressors.bucket.compressor import Worker
from taugrad.compressors.bucket.layout import cut_parameters, shards_of
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.lockstep import run_lockstep
from taugrad.compressors.exchange.patterns import downlink_method, pattern_for
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.cpu.passes import CPU

LINES = [
    "wgt(0.02)",
    "qsgd(decay=1)",
    "random_k(0.2)",
    "strom(density(0.1)) | golomb_rice",
    "linear(4, block=50)",
    "topk(0.2, momentum=0.5)",
]
FIXED = [
    "linear(4, block=50)",
    "linear(8, exempt={'names': ['*.bias']})",
    "quantile(8, block=64, decay=0.5)",
    "fp8(decay=1)",
    "fp16(decay=1, reduction='sum')",
    "bf16",
    "sign",
    "terngrad(decay=1)",
    "quantile(2, block=64)",
]
"""Methods whose messages have a fixed size."""
PATTERNS = ["sharded", "parameter_server", "ring"]
CASES = [case for case in product(PATTERNS, LINES) if case != ("ring", LINES[-1])]  # refused
CASES += [(pattern, "none") for pattern in PATTERNS]
CASES += [("collective", line) for line in FIXED]


def unsent(run: Run) -> dict[str, Tensor]:
    """By parameter, float64 [numel], what a worker owes to the sum of all gradients."""
    workers = run.state.workers
    kept = {name: torch.zeros(size).double() for name, size in SIZES.items()}
    for name, residual in run.residuals.items():
        kept[name] += residual.cpu()
    if (back := run.state.feedback.sums) is not None:  # of a mean, for all workers
        for name, residual in back.residuals.items():
            part = back.slices[name]
            kept[name][part.start : part.stop] += workers * residual.double().cpu()
    return kept


class Simulated:
    """The same exchanges in one process, over a carrier in memory, with all parameters in one bucket."""

    def __init__(self, pattern: str, line: str) -> None:
        method, workers = read_config(line), dist.get_world_size()
        self.names = list(reversed(SIZES))
        sizes = {name: SIZES[name] for name in self.names}
        slices = cut_parameters(SIZES, 1 if pattern == "parameter_server" else workers)
        self.patterns = [
            pattern_for(
                "sharded" if pattern == "collective" else pattern,
                method,
                downlink_method(method),
                Worker(CPU, rank, workers),
                sizes,
                shards=shards_of(slices, self.names),
            )
            for rank in range(workers)
        ]
        pairs = zip(in_memory(workers), self.patterns, strict=True)
        self.averagings = [Averaging(carrier, pattern, self.names) for carrier, pattern in pairs]

    def mean_of(self, given: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        coroutines = []
        for averaging, tensors in zip(self.averagings, given, strict=True):
            pending = averaging.begin([tensors[name].flatten().float() for name in self.names])
            coroutines.append(averaging.complete(pending))
        total, *_ = run_lockstep(coroutines)
        for averaging in self.averagings:
            averaging.pattern.commit()
            averaging.done += 1
        assert isinstance(total, Tensor)
        results = {name: torch.empty(SIZES[name]) for name in self.names}
        for shard in self.patterns[0].shards:
            into = shard.of([results[name] for name in self.names])
            for part, values in zip(into, shard.split(total[shard.start : shard.stop]), strict=True):
                part.copy_(values)
        return results


@scenario(3, values=CASES)
@scenario(2, values=[CASES[0], CASES[-5]])
@scenario(4, values=CASES[-6:-5])
def a_pattern_comes_to_the_bits_of_simulated_workers_and_loses_nothing(case: tuple[str, str]) -> None:
    pattern, line = case
    workers, simulated = dist.get_world_size(), Simulated(pattern, line)
    run = Run(line, pattern=pattern)  # type: ignore[arg-type]
    with HandedOver() as handed:
        for _ in range(STEPS):
            run.step()
            mean = simulated.mean_of(everyone({name: tensor.cpu() for name, tensor in run.latest.items()}))
            results = {name: gradient.cpu().flatten() for name, gradient in gradients(run.model).items()}
            assert_same(results, {name: mean[name] for name in results})
    assert_alike(run.digests)
    assert len(set(run.digests)) == STEPS
    given, kept = everyone(run.local), everyone(unsent(run))
    if not any(word in line for word in ("momentum", "decay=0.5", "bf16", "sum")):
        for name, applied in run.applied.items():
            total = sum(gradients[name].flatten() for gradients in given)
            sum_ = workers * applied.flatten().cpu() + sum(state[name] for state in kept)
            torch.testing.assert_close(sum_, total.cpu(), rtol=0, atol=2e-5)
    traffic, totals = run.state.traffic, run.state.totals
    assert torch.equal(torch.from_numpy(traffic.link_bytes), handed.nbytes[dist.get_rank()])
    assert totals.messages == int(handed.messages.sum())
    received = sum(of_rank[:, dist.get_rank()] for of_rank in everyone(handed.nbytes))
    assert totals.received_bytes == int(received.sum())
    check_buckets_and_resuming(run, case)


def check_buckets_and_resuming(whole: Run, case: tuple[str, str]) -> None:
    """Bits do not depend on buckets, nor on a checkpoint in between."""
    pattern, line = case
    options: Any = {"pattern": pattern, "bucket_cap_mb": TINY_BUCKETS}
    run = Run(line, **options).steps(3)
    again = Run(line, **options).go_on(run)
    assert run.steps(STEPS - 3).digests == whole.digests
    assert again.steps(STEPS - 3).digests == whole.digests[3:]
    states = [training.state.state_dict() for training in (again, run)]
    for state in states:  # messages are cut otherwise in a first step
        del state["traffic"], state["totals"]
    assert_same(*states)


@scenario(3, values=[*PATTERNS, "collective"])
def a_gradient_that_is_not_finite_is_named_or_skipped_on_all_workers(pattern: Any) -> None:
    line = "linear(4, block=50)" if pattern == "collective" else LINES[0]
    for cap in (25, TINY_BUCKETS):
        options: Any = {"pattern": pattern, "bucket_cap_mb": cap}
        run, skipping = Run(line, **options), Run(f"{line[:-1]}, nonfinite='skip')", **options)
        for training in (run, skipping):
            if dist.get_rank() == 1:
                training.poison = {3: ("middle.weight", float("nan"))}
        failure = failure_of(run.steps(3))
        assert isinstance(failure, NonFiniteGradient)
        assert (failure.parameter, failure.rank) == ("middle.weight", 1)
        skipping.steps(4)
        assert skipping.state.last_step.nonfinite == [("middle.weight", 1)]
        skipping.state.state_dict()  # what was sent is put back
        kept, given = everyone(unsent(skipping)), everyone(skipping.local)
        assert all(bool(torch.isfinite(tensor).all()) for one in kept for tensor in one.values())
        for name, applied in skipping.applied.items():
            total = sum(gradients[name].flatten() for gradients in given)
            left = 3 * applied.flatten() + sum(state[name] for state in kept)
            torch.testing.assert_close(left, total, rtol=0, atol=2e-5)
        skipping.steps(2)
        assert skipping.skipped == [3]
        assert_alike(skipping.digests)


class Few(Branches):
    """With a parameter of fewer elements than there are workers."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 5))


@scenario(3, values=FIXED)
def collectives_hold_back_what_messages_do(line: str) -> None:
    """A parameter that nobody used keeps its residual, and one that some used gets what they sent."""
    runs = {}
    for pattern in ("sharded", "collective"):
        torch.manual_seed(0)
        run = Run(line, pattern=pattern, model=Few(), find_unused_parameters=True)
        for step in range(6):
            run.model.used = {"sometimes"} if dist.get_rank() == 0 or step % 2 == 0 else set()
            run.model.used |= {"rarely"} if step in (0, 4) else set()
            run.step()
        state = run.state.state_dict()
        sent = state.pop("totals")["sent"]
        del state["traffic"]
        runs[pattern] = {"digests": run.digests, "sent": sent, **state}
    assert_same(runs["collective"], runs["sharded"])


@scenario(3, values=PATTERNS)
def residuals_are_resharded_to_another_number_of_workers(pattern: Any) -> None:
    """Two of three workers go on: as much of the mean is still to be sent, and thresholds stay."""
    run = Run("strom(density(0.1))", pattern=pattern).steps(3)
    states, kept = everyone(run.state.state_dict()), everyone(unsent(run))
    ranks = [1, 2]
    group = new_group(ranks)
    if dist.get_rank() not in ranks:
        return
    fewer = Run("strom(density(0.1))", pattern=pattern, process_group=group)
    fewer.state.load_state_dict(states, reshard=True)
    assert everyone(fewer.state.is_first_worker, group) == [True, False]  # it logs, without global rank 0
    now = everyone(unsent(fewer), group)
    for name in SIZES:
        before = sum(state[name] for state in kept) / 3
        torch.testing.assert_close(sum(tensor[name] for tensor in now) / 2, before, rtol=0, atol=1e-5)
    assert any(fewer.state.feedback.shard_memories.values()) == (pattern != "parameter_server")
    fewer.step()
    assert len(set(everyone(fewer.digests[-1], group))) == 1


@scenario(2)
def a_pattern_that_does_not_go_with_a_method_is_refused() -> None:
    run = Run(None)
    for line, pattern, words in (
        ("none", "collective", "pattern = collective with none: torch's own all-reduce exchanges it"),
        ("powersgd", "ring", "pattern = ring with powersgd: torch's own all-reduce exchanges it"),
        ("wgt(0.02)", "collective", "pattern = collective with method = wgt(tau=0.02): the size of its"),
        ("visible", "allgather", "method.kind = visible: it needs weights that all workers agreed on"),
        ("linear(8, symbols='huffman')", "collective", "pattern = collective with method = linear"),
        (LINES[-1], "ring", "method.momentum = 0.5 with pattern = ring: a hop also compresses what"),
    ):
        made: Any = lambda line=line, pattern=pattern: CompressionState(run.ddp, line, pattern=pattern)  # noqa: E731
        assert refusal(made).startswith(f"ValueError: {words}")
    for pattern, line, words in (
        ("ring", "fp16", "downlink = fp16 with ring: only parameter_server and sharded"),
        ("sharded", "powersgd", "downlink.kind = powersgd: its factors go through torch's own all-reduce"),
        ("sharded", "visible", "downlink.kind = visible: it needs weights that all workers agreed on"),
        ("sharded", LINES[-1], "downlink.momentum = 0.5: the sum already contains momentum"),
    ):
        made = lambda line=line, pattern=pattern: CompressionState(  # noqa: E731
            run.ddp, LINES[0], pattern=pattern, downlink=line
        )
        assert refusal(made).startswith(f"ValueError: {words}")
    states = [Run(LINES[0], pattern="sharded").steps(1), Run(LINES[0]).steps(1)]
    assert "another exchange pattern" in refusal(
        lambda: states[1].state.load_state_dict(states[0].state.state_dict())
    )
