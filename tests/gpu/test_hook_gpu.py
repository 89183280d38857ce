"""The GPU sends the same bytes as the CPU, from the same gradients."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, bucket, compressed_allgather, message
from taugrad.compressors.kernels import device
from taugrad.compressors.kernels.threshold import ThresholdRule
from taugrad.compressors.message import NonFinite
from taugrad.compressors.update import SparseUpdate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt")
every_rule = pytest.mark.parametrize("rule", RULES)


def gradients(n: int, tau: float, steps: int = 3) -> list[torch.Tensor]:
    """Values around tau, multiples of it, zeros of both signs and denormals."""
    rng = np.random.default_rng(n)
    made = []
    for _ in range(steps):
        values = rng.standard_normal(n) * tau * 3
        kind = rng.random(n)
        values = np.where(kind < 0.1, rng.integers(-300, 301, n) * tau, values)
        values = np.where(kind > 0.95, rng.choice([0.0, -0.0, 1e-45, -1e-40, 1e37, -1e37], n), values)
        made.append(torch.from_numpy(values.astype(np.float32)))
    return made


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


@every_rule
@pytest.mark.parametrize("n", [0, 1, 1000, 100_003])
@pytest.mark.parametrize("tau", [1e-36, 1e-3, 0.3])
def test_a_bucket_on_the_gpu_becomes_the_same_message_as_on_the_cpu(
    rule: ThresholdRule, n: int, tau: float
) -> None:
    sizes = [n // 3, n - n // 3]
    residuals = {place: [torch.zeros(size, device=place) for size in sizes] for place in ("cpu", "cuda")}
    for gradient in gradients(n, tau):
        messages, squares = [], []
        for place, kept in residuals.items():
            shares = torch.split(gradient.to(place), sizes)
            parts = [bucket.Part(f"p{i}", g, r) for i, (g, r) in enumerate(zip(shares, kept, strict=True))]
            update, tallies = bucket.compress(rule, tau, parts, bucket.Scratch())
            assert isinstance(update, SparseUpdate)
            messages.append(message.write(update).tobytes())
            squares.append([tally.residual_squares for tally in tallies])
        assert messages[0] == messages[1]
        for on_cpu, on_gpu in zip(residuals["cpu"], residuals["cuda"], strict=True):
            assert bits(on_cpu) == bits(on_gpu)
        if tau > 1e-10:
            assert squares[0] == pytest.approx(squares[1], rel=1e-4)


@every_rule
def test_a_gradient_that_is_not_finite_is_refused_as_on_the_cpu(rule: ThresholdRule) -> None:
    kept = {}
    for place in ("cpu", "cuda"):
        gradient = gradients(1000, 0.3, steps=1)[0].clip(-100, 100)
        gradient[[3, 700, 999]] = torch.tensor([float("nan"), float("inf"), -float("inf")])
        residual = torch.full((1000,), 0.01, device=place)
        refusal, _ = bucket.compress(
            rule, 0.3, [bucket.Part("p", gradient.to(place), residual)], bucket.Scratch()
        )
        assert isinstance(refusal, NonFinite)
        assert refusal.ordinal == 0
        kept[place] = bits(residual)
        assert residual[[3, 700, 999]].tolist() == pytest.approx([0.01] * 3)
    assert kept["cpu"] == kept["cuda"]


@every_rule
def test_updates_are_added_as_on_the_cpu(rule: ThresholdRule) -> None:
    parts = [bucket.Part("p", gradients(5000, 1e-36, steps=1)[0], torch.zeros(5000))]
    update, _ = bucket.compress(rule, 1e-36, parts, bucket.Scratch())
    assert isinstance(update, SparseUpdate)
    on_cpu = torch.full((5000,), 1e-40)  # denormal, so that a GPU's flushing would show
    on_gpu = on_cpu.to("cuda")
    bucket.add_to(update, on_cpu)
    device.add(update, on_gpu)
    assert bits(on_cpu) == bits(on_gpu)


@pytest.fixture(params=["gloo", "nccl"])
def one_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A process group of one worker; the backend's name."""
    if request.param == "nccl" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    dist.init_process_group(request.param, init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


@every_rule
def test_a_worker_on_the_gpu_keeps_the_ledger_of_one_on_the_cpu(rule: ThresholdRule, one_worker: str) -> None:
    """The gradients are set by hand: what a GPU computes differs from a CPU in its last bits."""
    found = []
    for place in ("cpu", "cuda"):
        if place == "cpu" and one_worker == "nccl":
            group = dist.new_group(backend="gloo")
        else:
            group = dist.group.WORLD
        torch.manual_seed(0)
        model = nn.Linear(30, 20).to(place)
        ddp = DistributedDataParallel(model, process_group=group)
        state = CompressionState(ddp, {"kind": rule, "tau": 0.05})
        ddp.register_comm_hook(state, compressed_allgather)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        factors = torch.randn(4, 620, generator=torch.Generator().manual_seed(1)) * 0.05
        for step in range(4):
            optimizer.zero_grad()
            weight, bias = factors[step].to(place).split([600, 20])
            ddp(torch.zeros(1, 30, device=place))  # DDP prepares its buckets in the forward pass
            loss = (model.weight.flatten() * weight).sum() + (model.bias * bias).sum()
            loss.backward()
            optimizer.step()
        residuals = {name: bits(residual) for name, residual in sorted(state.residuals.items())}
        found.append((state.totals.state_dict(), residuals))
    assert found[0] == found[1]
    assert 0 < found[0][0]["sent"] < found[0][0]["elements"]
