"""`compress_reduce_scatter`: FSDP2's reduce-scatter in fewer bits, beside native HSDP; see ddp.py."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from ddp import DEVICE, everyone, refusal, scenario
from ddp_replicas import CELLS, EVERYTHING, islands, local, network, passed, sharded, weights
from oracles import Floats, fp8, half, linear, quantile, sign
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import (
    NonFiniteGradient,
    ReduceScatterState,
    compress_reduce_scatter,
    compress_replicas,
)

WHOLE = "fp16(exempt={'smaller_than': 2147483647})"
"""A method of fixed size that sends everything."""
ORACLES: dict[str, tuple[Any, int, int]] = {
    "linear(8)": (linear, 8, 0),
    "linear(4, block=5)": (linear, 4, 5),
    "quantile(4, block=64)": (quantile, 4, 64),
    "fp8(block=20)": (fp8, 8, 20),
    "fp16": (half, "fp16", 0),
    "sign": (sign, 1, 0),
    "linear(8, exempt={'smaller_than': 20})": (linear, 8, 0),
}
"""By line, the definition of what a block becomes, its bits, and its elements; 0: a shard is a block."""


def island() -> DeviceMesh:
    """All workers."""
    return DeviceMesh(DEVICE.type, torch.arange(dist.get_world_size()), mesh_dim_names=("shard",))


def reduced(given: list[Floats], line: str) -> Floats:
    """The mean of a parameter's shards, which workers have sent: float32 [elements of a shard]."""
    oracle, bits, block = ORACLES[line]
    total = np.zeros(given[0].size, np.float32)
    for shard in given:
        blocks = np.split(shard, range(block, shard.size, block)) if block else [shard]
        total += np.concatenate([oracle(values, bits).values for values in blocks])
    return total / np.float32(len(given))


@contextmanager
def sent_to_all() -> Iterator[list[Tensor]]:
    """Copies of what is handed to torch's all-to-all."""
    messages: list[Tensor] = []
    real = dist.all_to_all_single

    def spy(output: Tensor, given: Tensor, **options: Any) -> Any:
        messages.append(given.clone())
        return real(output, given, **options)

    dist.all_to_all_single = spy
    try:
        yield messages
    finally:
        dist.all_to_all_single = real


@scenario(2, values=["linear(8)"])
@scenario(3, values=ORACLES)
@scenario(4, values=["linear(4, block=5)"])
def gradients_are_sums_of_quantized_shards(line: str) -> None:
    """Bit for bit, with shards of 13 and of 1 rows, which no number of workers here divides."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    whole = network("an empty shard")
    model = sharded(island(), deepcopy(whole))
    state = compress_reduce_scatter(model, line)
    given = [{} for _ in range(workers)]
    for step in range(2):
        whole.zero_grad()
        model.zero_grad()
        passed(whole, step)
        with sent_to_all() as messages:
            passed(model, step)
        given = everyone({name: parameter.grad.cpu() for name, parameter in whole.named_parameters()})
        for name, parameter in model.named_parameters():
            rows = -(-len(parameter) // workers)
            shards = []
            for gradients in given:
                padded = torch.zeros(workers * rows, *parameter.shape[1:])
                padded[: len(parameter)] = gradients[name]
                shards.append(padded[rank * rows : (rank + 1) * rows].flatten().numpy())
            exempt = "exempt" in line and parameter.numel() < 20
            mean = sum(shards) / np.float32(workers) if exempt else reduced(shards, line)
            actual = local(parameter.grad).flatten().cpu().numpy()
            assert actual.tobytes() == mean[: actual.size].tobytes(), name
    others = [torch.cat((of.view(workers, -1)[:rank], of.view(workers, -1)[rank + 1 :])) for of in messages]
    last, elements = state.last_step, sum(parameter.numel() for parameter in whole.parameters())
    assert last.wire_bytes == last.received_bytes == sum(message.numel() for message in others)
    assert last.messages == 3 * (workers - 1)
    assert last.elements == last.sent == elements
    assert state.totals.steps == 2
    assert state.totals.wire_bytes == 2 * last.wire_bytes
    if line == "linear(4, block=5)":
        assert last.paper_bits == 4 * elements
    assert everyone(float(sum(local(p.grad).norm() for p in model.parameters())))[0] > 0.01


@scenario(4, values=CELLS)
def a_reduce_scatter_that_sends_everything_trains_as_hsdp(cell: str) -> None:
    """By HSDP's all-reduce between islands, and by `compress_replicas`."""
    (trained, options), mesh = CELLS[cell], islands()
    native = sharded(mesh, network(cell), **options)
    expected = torch.tensor(trained(native))
    for over in (mesh, mesh["shard"]):
        model = sharded(over, network(cell), **options)
        state = compress_reduce_scatter(model, WHOLE)
        if over is not mesh:
            compress_replicas(model, mesh["replicate"], EVERYTHING)
        losses = torch.tensor(trained(model))
        assert (losses - expected).abs().max() < 1e-6
        assert (weights(model) - weights(native)).abs().max() < 1e-6
        assert state.totals.steps == (6 if cell == "frozen and thawed" else 3)
        assert state.totals.wire_bytes > 4 * state.totals.elements / 2


def with_a_nan(model: nn.Module, step: int) -> float:
    """A pass in which worker 1 has gradients of NaN."""
    return passed(model, step, torch.nan if dist.get_rank() == 1 else 1.0)


@scenario(3)
def a_gradient_that_is_not_finite_is_refused_or_skipped_in_the_island() -> None:
    model = sharded(island())
    state = compress_reduce_scatter(model, "linear(8)")
    passed(model, 0)
    said = refusal(lambda: with_a_nan(model, 1))
    assert said.startswith("NonFiniteGradient: the gradient of '0.0.weight' holds NaN or Inf on worker 1"), (
        said
    )
    assert isinstance(state.failure, NonFiniteGradient)
    for line in ("linear(8, nonfinite='skip')", "fp16(nonfinite='skip')"):
        model = sharded(island())
        state = compress_reduce_scatter(model, line)
        whole = compress_reduce_scatter(other := sharded(island()), line)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (model, other)]
        for step in range(3):
            with_a_nan(model, step) if step == 1 else passed(model, step)
            assert state.last_step.skipped == (step == 1)
            if not state.last_step.skipped:
                optimizers[0].step()
                passed(other, step)
                optimizers[1].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
        assert state.totals.skipped_steps == 1
        assert not any(rows.all._taken for rows in state._rows.values())  # no message is kept
        assert state.last_step.nonfinite == []
        assert whole.totals.steps == 2
        assert weights(model).equal(weights(other))


@scenario(2)
def a_resumed_run_draws_the_random_numbers_that_come_next() -> None:
    gradients = []
    for before in (0, 1):
        model = sharded(island())
        state = compress_reduce_scatter(model, "natural", steps=before)
        for _ in range(before, 2):
            model.zero_grad()
            passed(model, 0)
        assert state.totals.steps == 2
        gradients.append(torch.cat([local(parameter.grad).flatten() for parameter in model.parameters()]))
    assert gradients[0].equal(gradients[1])


@scenario(4)
def a_step_that_is_skipped_in_one_island_is_skipped_in_all() -> None:
    """By HSDP's all-reduce, and by `compress_replicas`."""
    mesh = islands()
    for over in (mesh, mesh["shard"]):
        model = sharded(over)
        inside = compress_reduce_scatter(model, "linear(8, nonfinite='skip')")
        states = [inside]
        if over is not mesh:
            states = [compress_replicas(model, mesh["replicate"], "linear(8, nonfinite='skip')")]
        skipped = []
        for step in range(3):
            with_a_nan(model, step) if step == 1 else passed(model, step)
            skipped.append([state.last_step.skipped for state in states])
            model.zero_grad()
        assert skipped == [[False], [True], [False]], skipped
        assert inside.totals.skipped_steps == (1 if over is mesh or dist.get_rank() < 2 else 0)


@scenario(2)
def what_a_reduce_scatter_cannot_be_is_refused() -> None:
    hooked = sharded(island())
    compress_reduce_scatter(hooked, "fp8")

    def made(method: str = "fp8", model: Any = None) -> str:
        model = sharded(island()) if model is None else model
        return refusal(lambda: compress_reduce_scatter(model, method))

    with patch.dict(sys.modules, {"torch.distributed.fsdp._fully_shard._fsdp_api": None}):  # as before 2.9
        del sys.modules[ReduceScatterState.__module__]
        old = refusal(lambda: import_module(ReduceScatterState.__module__))
    disagreeing = sharded(island())
    compress_reduce_scatter(disagreeing, f"linear({(4, 8)[dist.get_rank()]})")
    for said, words in (
        (old, "ImportError: compress_reduce_scatter needs a torch whose FSDPModule has set_custom_reduce_"),
        (
            made(model=DistributedDataParallel(network())),
            "TypeError: model is of DistributedDataParallel: it",
        ),
        (
            made(model=hooked),
            "RuntimeError: the model has a custom reduce-scatter already: call compress_red",
        ),
        (
            made("wgt(0.01)"),
            "ValueError: method = wgt(tau=0.01): its messages have no fixed size; a reduce-sc",
        ),
        (made("none"), "ValueError: method = none: its messages have no fixed size; a reduce-scatter is for"),
        (made("linear(8, decay=1)"), "ValueError: decay = 1.0 with a reduce-scatter: it keeps no residuals"),
        (made("fp8(reduction='sum')"), "ValueError: reduction = sum with a reduce-scatter: FSDP2 says what"),
        (made("fp8(exempt={'names': ['x*']})"), "ValueError: exempt.names: 'x*' matches no parameter of the"),
        (
            refusal(lambda: passed(disagreeing, 0)),
            "WorkersDisagree: the workers do not agree: rank 0: bits = 4, rank 1: bits = 8",
        ),
    ):
        assert said.startswith(words), said
        assert "\n" not in said
