"""What must hold of every method of support/methods.py, whatever it sends; see ddp.py.

By all-gathers and all-reduces here; what ddp_patterns.py asks of other exchange patterns is the same.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ddp import (
    ELEMENTS,
    SIZES,
    STEPS,
    TINY_BUCKETS,
    Config,
    Run,
    assert_alike,
    assert_nothing_lost,
    assert_same,
    everyone,
    failure_of,
    gradients,
    handed_over,
    make_model,
    scenario,
)
from methods import CONSERVING, MESSAGES, METHODS
from torch import Tensor, nn

from taugrad.compressors.bucket.compressor import Worker, is_exempt
from taugrad.compressors.bucket.layout import cut_parameters, shards_of
from taugrad.compressors.errors import NonFiniteGradient
from taugrad.compressors.exchange.averaging import Averaging
from taugrad.compressors.exchange.carrier import in_memory
from taugrad.compressors.exchange.lockstep import run_lockstep
from taugrad.compressors.exchange.patterns import downlink_method, pattern_for
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.parts import PartTally

SHAPES = [parameter.shape for parameter in make_model().parameters()]
STOP = 3


def run_of(config: Config, **options: Any) -> Run:
    return Run(config, process_group=dist.group.WORLD, **options)


def by_own_messages(line: str) -> bool:
    return isinstance(read_config(line), CompressedMethod)


def flat(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().flatten().cpu().clone() for name, tensor in tensors.items()}


def told(tallies: Iterable[PartTally]) -> dict[str, tuple[Any, ...]]:
    return {one.name: (one.elements, one.sent, one.paper_bits, one.tau) for one in tallies}


class Simulated:
    """The same exchanges in one process, on its CPU: without DDP, in memory, all parameters in one bucket."""

    def __init__(self, pattern: str, line: str) -> None:
        method, workers = read_config(line), dist.get_world_size()
        names = list(reversed(SIZES))
        pattern = {"collective": "sharded", "hierarchical": "allgather"}.get(pattern, pattern)
        slices = cut_parameters(SIZES, 1 if pattern in ("allgather", "parameter_server") else workers)
        self.averagings = [
            Averaging(
                carrier,
                pattern_for(
                    pattern,
                    method,
                    downlink_method(method),
                    Worker(CPU, rank, workers),
                    {name: SIZES[name] for name in names},
                    shards=shards_of(slices, names),
                ),
                names,
            )
            for rank, carrier in enumerate(in_memory(workers))
        ]

    def check(self, run: Run, given: list[dict[str, Tensor]]) -> None:
        """Makes the same step; gradients, what this worker keeps, and its counts must be the same."""
        exchanges = [
            averaging.begin([tensors[name].float() for name in averaging.pattern.names])
            for averaging, tensors in zip(self.averagings, given, strict=True)
        ]
        means: list[Any] = run_lockstep(
            [averaging.complete(one) for averaging, one in zip(self.averagings, exchanges, strict=True)]
        )
        for averaging in self.averagings:
            averaging.pattern.commit()
            averaging.done += 1
        pattern, feedback = self.averagings[dist.get_rank()].pattern, run.state.feedback
        due = pattern.by_parameter(means[0]).split([SIZES[name] for name in pattern.names])
        results = flat(gradients(run.model))
        assert_same(
            {name: results[name] for name in pattern.names}, dict(zip(pattern.names, due, strict=True))
        )
        for name in ("residuals", "velocities"):
            assert_same(flat(getattr(feedback, name)), flat(getattr(pattern.feedback, name)))
        assert feedback.memories == pattern.feedback.memories
        assert feedback.shard_memories == pattern.feedback.shard_memories
        assert told(run.state.last_step.layers) == told(exchanges[dist.get_rank()].record.layers)


def keep_promises(line: str, **options: Any) -> Run:
    """Replicas are identical, nothing is lost, simulated is real, and the ledger is what was handed over."""
    config: Any = read_config(line)
    pattern = options.get("pattern", "allgather" if by_own_messages(line) else None)
    simulated = None if pattern is None else Simulated(pattern, line)
    run, sums = run_of(line, **options), dict[str, int]()
    before, links = everyone({"unsent": run.unsent, "velocities": {}}), torch.zeros(1)
    for step in range(STEPS):
        with handed_over() as handed:
            run.step()
        note = {
            "given": flat(run.latest),
            "unsent": run.unsent,
            "velocities": flat(run.state.feedback.velocities),
            "handed": handed.nbytes,
            "totals": run.state.last_step.state_dict(),
            "digest": run.digests[-1],
        }
        notes = everyone(note)
        assert len({note["digest"] for note in notes}) == 1
        check_nothing_lost(line, config, step, run, notes, before)
        check_ledger(line, config, pattern, run, notes)
        if simulated is not None:
            links = links + handed.nbytes
            received = sum(int(of["handed"][dist.get_rank()]) for of in notes)
            assert note["totals"]["received_bytes"] == received
            assert note["totals"]["messages"] == int(handed.messages.sum())
            assert torch.equal(torch.from_numpy(run.state.traffic.link_bytes), links)
            simulated.check(run, [note["given"] for note in notes])
        else:
            assert handed.all_reduced == note["totals"]["sent"] == handed_to_all_reduces(config, step)
        sums = {name: sums.get(name, 0) + n for name, n in note["totals"].items()}
        before = notes
    assert len(set(run.digests)) == STEPS, "some step changed nothing"
    assert run.state.totals.state_dict() == sums
    assert 0 < sums["sent"] <= sums["elements"]
    check_buckets_and_resuming(line, run, options)
    return run


@scenario(3, values=MESSAGES)
@scenario(2, 3, values=[line for line in METHODS if line not in MESSAGES])
def a_method_keeps_its_promises(line: str) -> None:
    check_state(line, keep_promises(line).state.state_dict())


def is_whole(config: Any, name: str) -> bool:
    return hasattr(config, "exempt") and is_exempt(config.exempt, name, SIZES[name])


def check_nothing_lost(
    line: str, config: Any, step: int, run: Run, notes: list[dict[str, Any]], before: list[dict[str, Any]]
) -> None:
    """unsent + workers x mean = decay x unsent before + gradient; with momentum, its velocity is that."""
    clip = getattr(config, "clip", None)
    if not getattr(config, "feedback", True) or (clip is not None and (step + 1) % clip.every == 0):
        return
    decay, momentum = getattr(config, "decay", 1.0), getattr(config, "momentum", 0.0)
    nothing, times = torch.zeros(1), 1 if config.reduction == "sum" else len(notes)
    for name, result in flat(gradients(run.model)).items():
        owed, received = torch.zeros(SIZES[name], dtype=torch.float64), result.double() * times
        for now, last in zip(notes, before, strict=True):
            owed += now["given"][name].double()
            owed += decay * last["unsent"][name]
            owed += momentum * last["velocities"].get(name, nothing).double()
            received += now["unsent"][name]
        # Without a residual, as fp16 and bf16 are by default, only the rounding may be missing.
        exact = name in run.state.feedback.residuals or not by_own_messages(line) or is_whole(config, name)
        scale = float(max(note["given"][name].abs().max() for note in notes)) + float(owed.abs().max())
        torch.testing.assert_close(received, owed, rtol=0, atol=(1e-6 if exact else 2**-7) * scale)


def check_ledger(line: str, config: Any, pattern: str | None, run: Run, notes: list[dict[str, Any]]) -> None:
    """The step's ledger is what this worker counted, handed over and received."""
    last, workers, totals = run.state.last_step, len(notes), notes[dist.get_rank()]["totals"]
    assert {layer.name: layer.elements for layer in last.layers} == SIZES
    for layer in last.layers:
        bits = 32 if is_whole(config, layer.name) else METHODS.get(line)
        if bits is not None:
            assert layer.paper_bits == layer.sent * bits
        else:
            assert layer.paper_bits % max(layer.sent, 1) == 0
            assert layer.sent <= layer.paper_bits <= 32 * layer.sent
    assert (totals["steps"], totals["skipped_steps"], totals["elements"]) == (1, 0, ELEMENTS)
    assert totals["sent"] == sum(layer.sent for layer in last.layers)
    assert last.exchange_s > 0
    if pattern in (None, "allgather"):
        assert totals["paper_bits"] == sum(layer.paper_bits for layer in last.layers)
    if pattern is not None:
        assert last.compress_s > 0 < last.decompress_s
        squares = sum(float(kept.double().square().sum()) for kept in kept_by(run))
        assert last.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-12)
        assert last.keeps_residuals == bool(kept_by(run))
    if pattern == "allgather":  # what goes to all others counts once
        assert totals["wire_bytes"] == int(notes[dist.get_rank()]["handed"].max())
    if pattern is None:
        assert totals["wire_bytes"] == 4 * totals["sent"]
        received = sum(note["totals"]["received_bytes"] for note in notes)
        assert received == 2 * (workers - 1) * totals["wire_bytes"]
        # A ring all-reduce passes a bucket's parts on 2 (N - 1) times.
        assert totals["messages"] % (2 * (workers - 1)) == 0 < totals["messages"]


def kept_by(run: Run) -> list[Tensor]:
    """All residuals of this worker."""
    kept = (run.state.feedback, run.state.feedback.sums)
    return [residual for one in kept if one is not None for residual in one.residuals.values()]


def handed_to_all_reduces(config: Any, step: int, shapes: Iterable[Sequence[int]] = SHAPES) -> int:
    """Elements that a worker hands over: in place of a matrix [rows, columns] P and Q, if they are less."""
    count = 0
    for rows, *rest in shapes:
        columns = math.prod(rest)
        n, factors = rows * columns, min(rows, columns, getattr(config, "rank", 0)) * (rows + columns)
        shortens = config.kind == "powersgd" and step >= config.start and factors * config.min_rate < n
        count += factors if shortens else n
    return count


def check_buckets_and_resuming(line: str, whole: Run, options: dict[str, Any]) -> None:
    """Weights do not depend on the buckets, nor on a checkpoint in between.

    A run that goes on begins with the buckets of a first step, which are not those of its other steps.
    """
    options = {**options, "bucket_cap_mb": TINY_BUCKETS}
    run = run_of(line, **options).steps(STOP)
    if dist.get_world_size() == 3 and not (by_own_messages(line) or "pattern" in options):
        assert_alike(run.digests)  # a sum by all-reduce depends on an element's place in a bucket
        return
    again = run_of(line, **options).go_on(run)
    assert run.steps(STEPS - STOP).digests == whole.digests
    assert again.steps(STEPS - STOP).digests == whole.digests[STOP:]
    states = [training.state.state_dict() for training in (again, run)]
    for state in states:  # messages are cut otherwise in a first step
        state["totals"] = {
            name: state["totals"][name] for name in ("steps", "elements", "sent", "paper_bits")
        }
        del state["traffic"]
    assert_same(*states)


def check_state(line: str, state: dict[str, Any]) -> None:
    """A state holds plain numbers and tensors, under names that are kept."""
    assert state["version"] == 11
    assert state.keys() == {
        *("version", "rank", "workers", "residuals", "velocities", "memories", "powersgd"),
        *("totals", "traffic"),
    }
    for memory in state["memories"].values():
        assert {type(value) for value in memory.values()} <= {int, float, bool, list, type(None)}
    remembers = any(policy in line for policy in ("density(", "sidco(", "dl4j(", "allocate("))
    assert any(state["memories"].values()) == remembers
    assert all(type(value) is int for value in state["totals"].values())


@scenario(
    2, values=["qgt(0.004)", "topk(0.1)", "entropy", "none", "powersgd(rank=1, start=2)", "quantile(4)"]
)
def options_of_ddp_change_no_weight_and_a_sum_is_twice_the_mean(line: str) -> None:
    by: Any = {"pattern": "collective"} if line == "quantile(4)" else {}
    whole = run_of(line, **by).steps()
    for options in ({"static_graph": True}, {"find_unused_parameters": True, "bucket_cap_mb": TINY_BUCKETS}):
        assert run_of(line, **options, **by).steps().digests == whole.digests, options
    results = []
    for reduction in ("mean", "sum"):
        run = run_of(read_config(line).model_copy(update={"reduction": reduction}))
        for step in range(3):  # powersgd begins with plain all-reduces
            run.at = step
            run.backward()
        results.append(flat(gradients(run.model)))
    for name, mean in results[0].items():
        assert torch.equal(results[1][name], 2 * mean), name
    assert any(bool(mean.any()) for mean in results[0].values())


@scenario(2, values=CONSERVING)
def parameters_of_other_types_are_synchronized(line: str) -> None:
    for dtype, precision in ((torch.float64, 1e-6), (torch.bfloat16, 2**-8), (torch.float16, 2**-11)):
        run = run_of(line, model=make_model().to(dtype)).steps(2)
        assert {gradient.dtype for gradient in gradients(run.model).values()} == {dtype}
        assert_alike(run.digests)
        assert_nothing_lost(run, precision)


class Branches(nn.Module):
    """A net with parts that a step may leave out, and a parameter of fewer elements than workers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always = nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 5))
        self.sometimes, self.rarely = nn.Linear(6, 5), nn.Linear(6, 5)
        self.used: set[str] = set()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.always(inputs)
        for name in sorted(self.used):
            outputs = outputs + getattr(self, name)(inputs)
        return outputs


def with_parts_left_out(line: str, **options: Any) -> Run:
    """`sometimes` is left out by all but worker 0 in every second step, `rarely` by all in most steps."""
    model = Branches()
    run = run_of(line, model=model, find_unused_parameters=True, **options)
    for step in range(6):
        model.used = {"sometimes"} if dist.get_rank() == 0 or step % 2 == 0 else set()
        model.used |= {"rarely"} if step in (0, 4) else set()
        run.step()
    return run


@scenario(3, values=CONSERVING)
def nothing_is_lost_of_parameters_that_some_or_all_workers_left_out(line: str) -> None:
    run = with_parts_left_out(line)
    assert_alike(run.digests)
    assert_nothing_lost(run)


def refuse_or_skip(line: str, **options: Any) -> None:
    """A gradient that is not finite is named on every worker; a step that is skipped costs nothing."""
    messages, workers = by_own_messages(line), dist.get_world_size()
    for cap, bad in ((25, float("nan")), (TINY_BUCKETS, float("inf"))):
        run = run_of(line, bucket_cap_mb=cap, **options)
        if dist.get_rank() == 1:
            run.poison = {3: ("middle.bias", bad)}
        failure = failure_of(run.steps(3))
        assert isinstance(failure, NonFiniteGradient)
        assert (failure.parameter, failure.rank) == ("middle.bias", 1 if messages else -1)
    config = read_config(line)
    if config.brings_exchange:  # it never skips
        return
    skipping = config.model_copy(update={"nonfinite": "skip"})
    run = run_of(skipping, bucket_cap_mb=TINY_BUCKETS, **options)
    run.poison = {2: ("middle.weight", float("nan"))}
    if dist.get_rank() == 1:
        run.poison |= {3: ("head.bias", float("-inf")), 5: ("first.weight", float("nan"))}
    everybody, one = range(workers) if messages else [-1], 1 if messages else -1
    due = {2: [("middle.weight", rank) for rank in everybody], 3: [("head.bias", one)]}
    due |= {5: [("first.weight", one)]}
    for step in range(7):
        run.step()
        nonfinite = sorted(run.state.last_step.nonfinite)
        # Whoever reduces shards may pass on one refusal for all.
        assert nonfinite == due.get(step, []) or (options and set(nonfinite) < set(due[step])), nonfinite
        assert bool(nonfinite) == (step in due)
    assert run.skipped == [2, 3, 5]
    assert run.state.totals.skipped_steps == 3
    assert run.digests[1] == run.digests[2] == run.digests[3]
    assert_alike(run.digests)
    assert all(bool(torch.isfinite(kept).all()) for kept in run.unsent.values())
    if messages and "exempt" not in line:  # which keep nothing for a later step
        assert_nothing_lost(run)


@scenario(3, values=[*CONSERVING, "none", "powersgd(start=2)", "qgt(0.01, exempt=exempt(names=['*.bias']))"])
def a_step_that_is_not_finite_is_refused_or_skipped_by_all(line: str) -> None:
    refuse_or_skip(line)
