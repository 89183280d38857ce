"""What must hold of every method of support/methods.py, whatever it sends; see ddp.py."""

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
    make_model,
    scenario,
)
from methods import CONSERVING, MESSAGES, METHODS
from torch import Tensor, nn

from taugrad.compressors.bucket.compressor import Compressor, Outgoing, Worker, is_exempt
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.errors import NonFiniteGradient
from taugrad.compressors.exchange.patterns.allgather import AllGather
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.ops.array import Bytes
from taugrad.compressors.ops.cpu.passes import CPU

SHAPES = [parameter.shape for parameter in make_model().parameters()]
STOP = 3


def run_of(config: Config, **options: Any) -> Run:
    return Run(config, process_group=dist.group.WORLD, **options)


def by_own_messages(line: str) -> bool:
    return isinstance(read_config(line), CompressedMethod)


def flat(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().flatten().cpu().clone() for name, tensor in tensors.items()}


def memory_of(run: Run) -> dict[str, Tensor]:
    """What a worker owes, by parameter."""
    state = run.state.state_dict()
    return flat(state["residuals"] if state["powersgd"] is None else state["powersgd"]["errors"])


class Simulated:
    """The same workers in one process, on its CPU: messages read and summed, without DDP and a network."""

    def __init__(self, config: CompressedMethod) -> None:
        self.mine = Compressor(config, Worker(CPU, dist.get_rank()), Shard.whole(SIZES))

    def payload(self, run: Run) -> Bytes:
        self.sent = self.mine.compress([flat(run.latest)[name] for name in SIZES], run.at - 1)
        return self.sent.payload.copy()

    def check(self, run: Run, payloads: list[Bytes]) -> None:
        received, total = [self.mine.read(payload) for payload in payloads], torch.zeros(ELEMENTS)
        self.mine.total(received, len(received), total)
        due = dict(zip(SIZES, total.split(list(SIZES.values())), strict=True))
        assert_same(flat(gradients(run.model)), due)
        for name in ("residuals", "velocities"):
            assert_same(flat(getattr(run.state.feedback, name)), dict(getattr(self.mine.feedback, name)))
        assert_same(run.state.feedback.memories, self.mine.feedback.memories)
        tallies = {layer.name: layer for layer in run.state.last_step.layers}
        for one in self.sent.tallies:
            actual = tallies[one.name]
            assert (actual.elements, actual.sent, actual.paper_bits, actual.tau) == (
                one.elements, one.sent, one.paper_bits, one.tau,
            )  # fmt: skip


@scenario(3, values=MESSAGES)
@scenario(2, 3, values=[line for line in METHODS if line not in MESSAGES])
def a_method_keeps_its_promises(line: str) -> None:
    """Replicas are identical, nothing is lost, simulated is real, and the ledger is what was handed over."""
    config: Any = read_config(line)
    by_messages, workers = by_own_messages(line), dist.get_world_size()
    simulated = Simulated(config) if by_messages else None
    handed: list[Bytes] = []
    compress = AllGather.compress

    def noting(self: AllGather, *given: Any) -> Outgoing:
        outgoing = compress(self, *given)
        handed.append(outgoing.payload)
        return outgoing

    run, sums = run_of(line), dict[str, int]()
    before: list[dict[str, Any]] = [{"kept": {}, "velocities": {}}] * workers
    AllGather.compress = noting  # type: ignore[method-assign]
    for step in range(STEPS):
        handed.clear()
        run.step()
        last = run.state.last_step
        note = {
            "given": flat(run.latest),
            "kept": memory_of(run),
            "velocities": flat(run.state.feedback.velocities),
            "simulated": None if simulated is None else simulated.payload(run),
            "handed": [(tensor.size, elements_in(tensor)) for tensor in handed],
            "layers": [(layer.sent, layer.paper_bits) for layer in last.layers],
            "totals": last.state_dict(),
            "digest": run.digests[-1],
        }
        notes = everyone(note)
        assert len({note["digest"] for note in notes}) == 1
        check_nothing_lost(line, config, step, run, notes, before)
        check_ledger(line, config, step, run, notes)
        if simulated is not None:
            simulated.check(run, [note["simulated"] for note in notes])
            squares = sum(float(tensor.double().square().sum()) for tensor in note["kept"].values())
            assert last.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-12)
            assert last.keeps_residuals == bool(note["kept"])
        sums = {name: sums.get(name, 0) + n for name, n in note["totals"].items()}
        before = notes
    AllGather.compress = compress  # type: ignore[method-assign]
    assert len(set(run.digests)) == STEPS, "some step changed nothing"
    assert run.state.totals.state_dict() == sums
    assert 0 < sums["sent"] <= sums["elements"]
    check_buckets_and_resuming(line, run)
    check_state(line, run.state.state_dict())


def is_whole(config: Any, name: str) -> bool:
    return hasattr(config, "exempt") and is_exempt(config.exempt, name, SIZES[name])


def elements_in(payload: Bytes) -> int:
    """What the messages of a payload hold, by the header's documented places."""
    count = at = 0
    while at < payload.size:
        count += int(payload[at + 12 : at + 16].view("<u4")[0])
        at += 28 + int(payload[at + 16 : at + 24].view("<u8")[0])
    return count


def check_nothing_lost(
    line: str, config: Any, step: int, run: Run, notes: list[dict[str, Any]], before: list[dict[str, Any]]
) -> None:
    """kept + workers x mean = decay x kept before + gradient; with momentum the velocity is the gradient."""
    clip = getattr(config, "clip", None)
    if not getattr(config, "feedback", True) or (clip is not None and (step + 1) % clip.every == 0):
        return
    decay, momentum = getattr(config, "decay", 1.0), getattr(config, "momentum", 0.0)
    nothing = torch.zeros(1)
    for name, mean in flat(gradients(run.model)).items():
        owed, received = torch.zeros(SIZES[name], dtype=torch.float64), mean.double() * len(notes)
        for now, last in zip(notes, before, strict=True):
            owed += now["given"][name].double()
            owed += decay * last["kept"].get(name, nothing).double()
            owed += momentum * last["velocities"].get(name, nothing).double()
            received += now["kept"].get(name, nothing).double()
        # Without a residual, as fp16 and bf16 are by default, only the rounding may be missing.
        exact = name in notes[0]["kept"] or not by_own_messages(line) or is_whole(config, name)
        scale = float(max(note["given"][name].abs().max() for note in notes)) + float(owed.abs().max())
        torch.testing.assert_close(received, owed, rtol=0, atol=(1e-6 if exact else 2**-8) * scale)


def check_ledger(line: str, config: Any, step: int, run: Run, notes: list[dict[str, Any]]) -> None:
    """The step's ledger is what this worker counted, handed over and received."""
    last, workers = run.state.last_step, len(notes)
    assert {layer.name: layer.elements for layer in last.layers} == SIZES
    for layer in last.layers:
        bits = 32 if is_whole(config, layer.name) else METHODS[line]
        if bits is not None:
            assert layer.paper_bits == layer.sent * bits
        else:
            assert layer.paper_bits % max(layer.sent, 1) == 0
            assert layer.sent <= layer.paper_bits <= 16 * layer.sent
    mine = notes[dist.get_rank()]
    totals = mine["totals"]
    sent, paper = (sum(counts) for counts in zip(*mine["layers"], strict=True))
    assert (totals["steps"], totals["skipped_steps"]) == (1, 0)
    assert (totals["elements"], totals["sent"], totals["paper_bits"]) == (ELEMENTS, sent, paper)
    assert last.exchange_s > 0
    if by_own_messages(line):
        handed, every = mine["handed"], [payload for note in notes for payload in note["handed"]]
        assert last.compress_s > 0 < last.decompress_s
        assert sent == sum(elements for _, elements in handed)
        assert totals["messages"] == (workers - 1) * len(handed)
        assert totals["wire_bytes"] == sum(size for size, _ in handed)
        assert totals["received_bytes"] == sum(size for size, _ in every) - totals["wire_bytes"]
    else:
        assert sent == handed_to_all_reduces(config, step)
        assert totals["wire_bytes"] == 4 * sent
        received = sum(note["totals"]["received_bytes"] for note in notes)
        assert received == 2 * (workers - 1) * totals["wire_bytes"]
        # A ring all-reduce passes a bucket's parts on 2 (N - 1) times.
        assert totals["messages"] % (2 * (workers - 1)) == 0 < totals["messages"]


def handed_to_all_reduces(config: Any, step: int, shapes: Iterable[Sequence[int]] = SHAPES) -> int:
    """Elements that a worker hands over: in place of a matrix [rows, columns] P and Q, if they are less."""
    count = 0
    for rows, *rest in shapes:
        columns = math.prod(rest)
        n, factors = rows * columns, min(rows, columns, getattr(config, "rank", 0)) * (rows + columns)
        shortens = config.kind == "powersgd" and step >= config.start and factors * config.min_rate < n
        count += factors if shortens else n
    return count


def check_buckets_and_resuming(line: str, whole: Run) -> None:
    """Weights do not depend on the buckets, nor on a checkpoint in between.

    A run that goes on begins with the buckets of a first step, which are not those of its other steps.
    """
    run = run_of(line, bucket_cap_mb=TINY_BUCKETS).steps(STOP)
    if dist.get_world_size() == 3 and not by_own_messages(line):
        assert_alike(run.digests)  # a sum by all-reduce depends on an element's place in a bucket
        return
    again = run_of(line, bucket_cap_mb=TINY_BUCKETS).go_on(run)
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
    """A net with parts that a step may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.rarely = nn.Linear(6, 5), nn.Linear(6, 5), nn.Linear(6, 5)
        self.used: set[str] = set()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.always(inputs)
        for name in sorted(self.used):
            outputs = outputs + getattr(self, name)(inputs)
        return outputs


@scenario(2, 3, values=CONSERVING)
def nothing_is_lost_of_parameters_that_some_or_all_workers_left_out(line: str) -> None:
    """`sometimes` is left out by all but worker 0 in every second step, `rarely` by all in most steps."""
    torch.manual_seed(0)
    model = Branches()
    run = run_of(line, model=model, find_unused_parameters=True)
    for step in range(6):
        model.used = {"sometimes"} if dist.get_rank() == 0 or step % 2 == 0 else set()
        if step in (0, 4):
            model.used.add("rarely")
        run.step()
    assert_alike(run.digests)
    assert_nothing_lost(run)


@scenario(2, 3, values=[*CONSERVING, "none"])
def a_step_that_is_skipped_costs_nothing(line: str) -> None:
    """Worker 1's gradients are not finite in two of six steps, all workers' in another."""
    by_messages, workers = by_own_messages(line), dist.get_world_size()
    run = run_of(read_config(line).model_copy(update={"nonfinite": "skip"}), bucket_cap_mb=TINY_BUCKETS)
    run.poison = {2: ("middle.weight", float("nan"))}
    if dist.get_rank() == 1:
        run.poison |= {3: ("head.bias", float("-inf")), 5: ("first.weight", float("nan"))}
    everybody = [("middle.weight", rank) for rank in range(workers)]
    due = [
        *([], [], everybody if by_messages else [("middle.weight", -1)]),
        *([("head.bias", 1 if by_messages else -1)], [], [("first.weight", 1 if by_messages else -1)]),
    ]
    for where in due:
        run.step()
        assert sorted(run.state.last_step.nonfinite) == where
    assert run.skipped == [2, 3, 5]
    assert run.state.totals.skipped_steps == 3
    assert run.digests[1] == run.digests[2] == run.digests[3]
    assert_alike(run.digests)
    assert all(bool(torch.isfinite(kept).all()) for kept in run.residuals.values())
    if by_messages:  # none keeps nothing for a later step
        assert_nothing_lost(run)


@scenario(2, values=[*CONSERVING, "none", "powersgd(start=2)", "qgt(0.01, exempt=exempt(names=['*.bias']))"])
def a_gradient_that_is_not_finite_is_refused_on_every_worker(line: str) -> None:
    for cap, bad in ((25, float("nan")), (TINY_BUCKETS, float("inf"))):
        run = run_of(line, bucket_cap_mb=cap)
        if dist.get_rank() == 1:
            run.poison = {3: ("middle.bias", bad)}
        failure = failure_of(run.steps(3))
        assert isinstance(failure, NonFiniteGradient)
        assert failure.parameter == "middle.bias"
        assert failure.rank == (1 if by_own_messages(line) else -1)
