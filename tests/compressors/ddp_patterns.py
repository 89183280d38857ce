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
from ddp_sites import HandedOver
from torch import Tensor

from taugrad.compressors import CompressionState, NonFiniteGradient
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.patterns import pattern_for, returning
from taugrad.compressors.exchange.patterns.base import Setting
from taugrad.compressors.exchange.runner import SimulatedRunner
from taugrad.compressors.method import read_config
from taugrad.compressors.protocols import compressed

LINES = ["wgt(0.02)", "strom(density(0.1)) | golomb_rice", "linear(4, block=50)", "topk(0.2, momentum=0.5)"]
PATTERNS = ["sharded", "parameter_server", "ring"]
CASES = [case for case in product(PATTERNS, LINES) if case != ("ring", LINES[-1])]  # refused
compressed._SHORTEST_SLICE = 16  # these parameters are small


def owed(run: Run) -> dict[str, Tensor]:
    """By parameter, float64 [numel], what a worker owes to the sum of all gradients."""
    workers = run.state.workers
    kept = {name: torch.zeros(size).double() for name, size in SIZES.items()}
    for name, residual in run.residuals.items():
        kept[name] += residual.cpu()
    if (back := run.state._protocol.back) is not None:  # of a mean, for all workers
        for name, residual in back.residuals.items():
            part = back.slices[name]
            kept[name][part.start : part.stop] += workers * residual.double().cpu()
    return kept


class Simulated:
    """The same exchanges in one process, over a carrier in memory, with all parameters in one bucket."""

    def __init__(self, pattern: str, line: str) -> None:
        method, workers = read_config(line), dist.get_world_size()
        self.names = list(reversed(SIZES))
        like = [torch.zeros(SIZES[name]) for name in self.names]
        slices = compressed._cut_each(SIZES, 1 if pattern == "parameter_server" else workers)
        cut: Any = lambda *_: compressed._shards(slices, self.names)  # noqa: E731
        self.patterns = [
            pattern_for(
                pattern, method, returning(method), Setting(self.names, like, rank, workers), None, cut
            )
            for rank in range(workers)
        ]
        self.averaging = Averaging(SimulatedRunner(workers), self.patterns, self.names)

    def mean_of(self, given: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        pending = [
            self.averaging.begin(rank, [gradients[name].flatten().float() for name in self.names])
            for rank, gradients in enumerate(given)
        ]
        outcome = self.averaging.run(pending)
        for pattern in self.patterns:
            pattern.commit()
        self.averaging.done += 1
        assert isinstance(outcome.mean, Tensor)
        results = {name: torch.empty(SIZES[name]) for name in self.names}
        for shard in self.patterns[0].shards:
            into = shard.of([results[name] for name in self.names])
            for part, values in zip(into, shard.split(outcome.mean[shard.start : shard.stop]), strict=True):
                part.copy_(values)
        return results


@scenario(3, values=CASES)
@scenario(2, values=CASES[:1])
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
    given, kept = everyone(run.local), everyone(owed(run))
    if "momentum" not in line:
        for name, applied in run.applied.items():
            total = sum(gradients[name].flatten() for gradients in given)
            found_ = workers * applied.flatten().cpu() + sum(state[name] for state in kept)
            torch.testing.assert_close(found_, total.cpu(), rtol=0, atol=2e-5)
    traffic, totals = run.state.traffic, run.state.totals
    assert torch.equal(torch.from_numpy(traffic.link_bytes), handed.nbytes)
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


@scenario(3, values=PATTERNS)
def a_gradient_that_is_not_finite_is_named_or_skipped_on_all_workers(pattern: Any) -> None:
    for cap in (25, TINY_BUCKETS):
        options: Any = {"pattern": pattern, "bucket_cap_mb": cap}
        run, skipping = Run(LINES[0], **options), Run("wgt(0.02, nonfinite='skip')", **options)
        for training in (run, skipping):
            if dist.get_rank() == 1:
                training.poison = {3: ("middle.weight", float("nan"))}
        failure = failure_of(run.steps(3))
        assert isinstance(failure, NonFiniteGradient)
        assert (failure.parameter, failure.rank) == ("middle.weight", 1)
        skipping.steps(4)
        assert skipping.state.last_step.nonfinite == [("middle.weight", 1)]
        kept = everyone(owed(skipping))
        skipping.steps(2)
        assert skipping.skipped == [3]
        assert_alike(skipping.digests)
        assert all(bool(torch.isfinite(tensor).all()) for one in kept for tensor in one.values())


@scenario(3, values=PATTERNS)
def what_is_owed_is_owed_by_another_number_of_workers(pattern: Any) -> None:
    """Two of three workers go on: as much of the mean is still to be sent, and thresholds stay."""
    run = Run("strom(density(0.1))", pattern=pattern).steps(3)
    states, kept = everyone(run.state.state_dict()), everyone(owed(run))
    ranks = [1, 2]
    group = new_group(ranks)
    if dist.get_rank() not in ranks:
        return
    fewer = Run("strom(density(0.1))", pattern=pattern, process_group=group)
    fewer.state.load_state_dict(states, reshard=True)
    assert everyone(fewer.state.is_first_worker, group) == [True, False]  # it logs, without global rank 0
    now = everyone(owed(fewer), group)
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
        ("none", "sharded", "pattern = sharded with none: torch's own all-reduce exchanges it"),
        ("powersgd", "ring", "pattern = ring with powersgd: torch's own all-reduce exchanges it"),
        (LINES[-1], "ring", "momentum = 0.5 with pattern = ring: a hop compresses other workers' gradients"),
    ):
        made: Any = lambda line=line, pattern=pattern: CompressionState(run.ddp, line, pattern=pattern)  # noqa: E731
        assert refusal(made).startswith(f"ValueError: {words}")
    states = [Run(LINES[0], pattern="sharded").steps(1), Run(LINES[0]).steps(1)]
    assert "another exchange pattern" in refusal(
        lambda: states[1].state.load_state_dict(states[0].state.state_dict())
    )
