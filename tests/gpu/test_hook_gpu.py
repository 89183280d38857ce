"""Large buckets on a GPU, and the hook there: the same bytes, residuals and ledgers as on the CPU.

What holds of every method is in tests/cuda/test_device_bucket.py, on an emulated GPU and on a real one.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cases import in_turn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from workbench import Worker

from taugrad import compressors
from taugrad.compressors import CompressionState, compression_hook
from taugrad.compressors.ops import ops_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

KEPT: list[CompressionState] = []
"""To the end of the process: a thread of gloo's that frees a group last would wait for itself, and abort."""


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


def assert_same_steps(line: str, n: int, steps: int) -> None:
    """Fails unless a worker on each device sends, keeps and reads the same of one parameter."""
    results = []
    for place in ("cpu", "cuda"):
        ops = ops_for(torch.device(place))
        assert ops.on_host == (place == "cpu")
        worker = Worker(line, [n], ops=ops)
        for step in range(steps):
            gradient = torch.randn(n, generator=torch.Generator().manual_seed(step))
            done = worker.step([gradient.numpy() * np.float32(0.03)])
            kept, memories = worker.state
            digests = [hashlib.sha256(data or b"").hexdigest() for data in (*kept, done.decoded[0].tobytes())]
            results.append((place, done.payloads, digests, str(memories)))
    for one, other in zip(results[:steps], results[steps:], strict=True):
        assert one[1:] == other[1:]


@in_turn("line", ["wgt(0.075) | golomb_rice", "strom(0.075)", "topk(0.001)"])
def test_a_parameter_of_two_gibibytes_becomes_the_same_payload(line: str) -> None:
    """536,870,912 elements: byte offsets pass what 32 bits hold."""
    assert_same_steps(line, 2**29, 1)


@pytest.fixture(params=["gloo", "nccl", None, "cpu:gloo,cuda:nccl"])
def one_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A process group of one worker; the backend's name."""
    if request.param != "gloo" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    dist.init_process_group(request.param, init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


LINES = [
    "wgt(density(0.1, every=2), momentum=0.5, exempt=exempt(names=['bias']))",
    "wgt(0.05) | quantile(3, block=64) | golomb_rice",
    "topk(0.1)",
    "qsgd(decay=1)",
    "fp16(decay=1)",
]


@in_turn("line", LINES)
def test_a_worker_on_the_gpu_keeps_the_ledger_of_one_on_the_cpu(line: str, one_worker: str) -> None:
    """The gradients are set by hand: what a GPU computes differs from a CPU in its last bits."""
    results = []
    for place in ("cpu", "cuda"):
        if place == "cpu" and one_worker != "gloo":
            group = dist.new_group(backend="gloo")
        else:
            group = dist.group.WORLD
        torch.manual_seed(0)
        model = nn.Linear(30, 20).to(place)
        ddp = DistributedDataParallel(model, process_group=group)
        state = CompressionState(ddp, line)
        KEPT.append(state)
        ddp.register_comm_hook(state, compression_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        factors = torch.randn(4, 620, generator=torch.Generator().manual_seed(1)) * 0.05
        for step in range(4):
            optimizer.zero_grad()
            weight, bias = factors[step].to(place).split([600, 20])
            ddp(torch.zeros(1, 30, device=place))  # DDP prepares its buckets in the forward pass
            loss = (model.weight.flatten() * weight).sum() + (model.bias * bias).sum()
            loss.backward()
            optimizer.step()
        kept = {name: bits(tensor) for name, tensor in sorted({**state.feedback.residuals}.items())}
        moving = {name: bits(tensor) for name, tensor in sorted({**state.feedback.velocities}.items())}
        results.append((state.totals.state_dict(), kept, moving, state.feedback.memories))
    assert results[0] == results[1]
    assert 0 < results[0][0]["sent"] <= results[0][0]["elements"]


@in_turn("line", ["topk(0.1)", "wgt(0.05, momentum=0.5)", "linear(4)"])
def test_a_state_goes_from_the_gpu_through_a_file_to_the_cpu(
    line: str, one_worker: str, tmp_path: Path
) -> None:
    model = nn.Linear(30, 20).to("cuda")
    ddp = DistributedDataParallel(model)
    state = CompressionState(ddp, line)
    KEPT.append(state)
    ddp.register_comm_hook(state, compression_hook)
    ddp(torch.randn(4, 30, device="cuda")).square().sum().backward()
    torch.save(state.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True)
    group = dist.new_group(backend="gloo") if one_worker != "gloo" else dist.group.WORLD
    there = CompressionState(DistributedDataParallel(nn.Linear(30, 20), process_group=group), line)
    there.load_state_dict(loaded)
    KEPT.append(there)
    for name, kept in state.feedback.residuals.items():
        assert there.feedback.residuals[name].device.type == "cpu"
        assert bits(there.feedback.residuals[name]) == bits(kept)


def scattered(place: str, line: str, gradients: torch.Tensor) -> list[bytes]:
    """What FSDP2's reduce-scatter makes of one worker's gradient, and the messages that four would get.

    In a group of one, FSDP2 itself calls none: a hook does, in a backward pass.
    """
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 7)).to(place)
    fully_shard(model, mesh=init_device_mesh(place, (1,)))
    state = compressors.compress_reduce_scatter(model, line)
    (named,) = state._groups
    given, results = gradients.to(place), []

    def reduce(gradient: torch.Tensor) -> None:
        shard = torch.empty_like(given)
        group = named.group.mesh_info.shard_process_group
        named.group._reduce_scatter_comm(shard, given.clone(), group, dist.ReduceOp.AVG)
        rows = state._rows_of(named.group.fsdp_params, named, 4)
        results.extend([shard, state._messages(rows, given.repeat(4).view(4, -1) * 3)])

    leaf = torch.ones(1, device=place, requires_grad=True)
    leaf.register_hook(reduce)
    leaf.sum().backward()
    assert state.last_step.skipped == bool(gradients.isnan().any())
    assert state.totals.elements == gradients.numel()
    return [bits(result.float() if result.is_floating_point() else result) for result in results]


@pytest.mark.skipif(
    not hasattr(FSDPModule, "set_custom_reduce_scatter"), reason="this torch has no custom reduce-scatters"
)
@in_turn("line", ["linear(8, {})", "linear(4, block=64, {})", "quantile(4, {})", "fp8({})", "bf16({})"])
@in_turn("dtype", [torch.float32, torch.bfloat16])
def test_a_reduce_scatter_on_the_gpu_has_the_bits_of_one_on_the_cpu(
    line: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        gradients = torch.randn(767, generator=torch.Generator().manual_seed(1)).to(dtype)
        for nan in (False, True):
            gradients[40] = torch.nan if nan else 1
            made = [scattered(place, line.format("nonfinite='skip'"), gradients) for place in ("cpu", "cuda")]
            assert made[0][nan:1] == made[1][nan:1]  # what stands beside a NaN means nothing
            assert nan or made[0] == made[1]
            assert np.isnan(np.frombuffer(made[1][0], np.float32)).any() == nan
    finally:
        dist.destroy_process_group()
