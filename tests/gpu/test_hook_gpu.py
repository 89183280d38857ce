"""The GPU sends the same bytes as the CPU, from the same gradients, with every method."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.applying import add_to
from taugrad.compressors.bucket import Compressor
from taugrad.compressors.config import CompressedMethod, read_config
from taugrad.compressors.message import NonFinite
from taugrad.compressors.parts import Part
from taugrad.compressors.rules import Context

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

_FILE = Path(__file__).parents[1] / "compressors" / "methods.py"
METHODS = [
    line for line in runpy.run_path(str(_FILE))["METHODS"] if not line.startswith(("none", "powersgd"))
]
ON_DEVICE = ("wgt", "bgt", "qgt", "strom")
"""Rules with a pass of their own on a GPU, where nothing quantizes what they sent."""
NAMES = ("head.bias", "first.weight", "middle.weight")

KEPT: list[CompressionState] = []
"""To the end of the process: a thread of gloo's that frees a group last would wait for itself, and abort."""

every_method = pytest.mark.parametrize("line", METHODS)
every_rule = pytest.mark.parametrize("rule", ON_DEVICE)


def method(line: str) -> CompressedMethod:
    config: Any = read_config(line)
    return config


def gradients(n: int, tau: float, steps: int = 3) -> list[torch.Tensor]:
    """Values around tau, multiples of it, zeros of both signs and denormals."""
    rng = np.random.default_rng(n)
    made = []
    for _ in range(steps):
        values = rng.standard_normal(n) * tau * 3
        kind = rng.random(n)
        values = np.where(kind < 0.1, rng.integers(-300, 301, n) * tau, values)
        values = np.where(kind > 0.95, rng.choice([0.0, -0.0, 1e-45, -1e-40], n), values)
        made.append(torch.from_numpy(values.astype(np.float32)))
    return made


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()


class Worker:
    """One worker's side of a method on a device: what it keeps, and what it makes of gradients."""

    def __init__(self, line: str, sizes: list[int], device: str) -> None:
        self.compressor, self.sizes, self.device = Compressor(method(line)), sizes, device
        config, rule = self.compressor.config, self.compressor.rule
        self.layout = self.compressor.layout(NAMES[: len(sizes)], sizes)
        exempt = {place.ordinal for place in self.layout.exempt.places} if self.layout.exempt else set()
        keeps = [i not in exempt and (rule.needs_residual or config.decay != 0) for i in range(len(sizes))]
        moves = [i not in exempt and getattr(config, "momentum", 0) != 0 for i in range(len(sizes))]
        self.residuals = [
            torch.zeros(n, device=device) if k else None for n, k in zip(sizes, keeps, strict=True)
        ]
        self.velocities = [
            torch.zeros(n, device=device) if m else None for n, m in zip(sizes, moves, strict=True)
        ]
        self.context = Context()

    def parts(self, gradient: torch.Tensor) -> list[Part]:
        shares = torch.split(gradient.to(self.device), self.sizes)
        return [Part(*each) for each in zip(NAMES, shares, self.residuals, self.velocities, strict=False)]

    def state(self) -> list[bytes | None]:
        return [None if each is None else bits(each) for each in (*self.residuals, *self.velocities)]


def both(line: str, sizes: list[int]) -> list[Worker]:
    return [Worker(line, sizes, device) for device in ("cpu", "cuda")]


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [3, 1000, 100_003])
def test_a_bucket_on_the_gpu_becomes_the_same_payload_as_on_the_cpu(
    line: str, n: int, dtype: torch.dtype
) -> None:
    workers = both(line, [n // 3, n - n // 3 - 1, 1])
    for iteration, gradient in enumerate(gradients(n, 0.01)):
        outgoing = []
        for worker in workers:
            worker.context.iteration = iteration
            parts = worker.parts(gradient.to(dtype))
            outgoing.append(worker.compressor.compress(parts, worker.layout, worker.context))
        on_cpu, on_gpu = outgoing
        assert on_cpu.payload.tobytes() == on_gpu.payload.tobytes()
        assert workers[0].state() == workers[1].state()
        assert workers[0].context.memories == workers[1].context.memories
        for one, other in zip(on_cpu.tallies, on_gpu.tallies, strict=True):
            assert (one.name, one.sent, one.tau, one.paper_bits) == (
                other.name,
                other.sent,
                other.tau,
                other.paper_bits,
            )
            assert one.residual_squares == pytest.approx(other.residual_squares, rel=1e-4, abs=1e-12)


@every_method
def test_a_payload_is_added_on_the_gpu_as_on_the_cpu(line: str) -> None:
    worker, other = both(line, [400, 4600])
    (gradient,) = gradients(5000, 0.01, steps=1)
    outgoing = worker.compressor.compress(worker.parts(gradient), worker.layout, worker.context)
    on_cpu = torch.full((5000,), 1e-40)  # denormal, so that a GPU's flushing would show
    on_gpu = on_cpu.to("cuda")
    for each, total in ((worker, on_cpu), (other, on_gpu)):
        incoming = each.compressor.read(outgoing.payload, each.layout)
        assert not isinstance(incoming, NonFinite)
        each.compressor.add(incoming, total)
    assert bits(on_cpu) == bits(on_gpu)


@every_method
def test_what_is_put_back_is_the_same_on_the_gpu(line: str) -> None:
    workers = both(line, [400, 4600])
    (gradient,) = gradients(5000, 0.01, steps=1)
    for worker in workers:
        parts = worker.parts(gradient)
        outgoing = worker.compressor.compress(parts, worker.layout, worker.context)
        worker.compressor.put_back(outgoing, parts)
    assert workers[0].state() == workers[1].state()


@every_method
def test_a_gradient_that_is_not_finite_is_refused_as_on_the_cpu(line: str) -> None:
    workers = both(line, [400, 600])
    gradient = gradients(1000, 0.01, steps=1)[0]
    gradient[[503, 700, 999]] = torch.tensor([float("nan"), float("inf"), -float("inf")])
    for worker in workers:
        outgoing = worker.compressor.compress(worker.parts(gradient), worker.layout, worker.context)
        refusal = worker.compressor.read(outgoing.payload, worker.layout)
        assert isinstance(refusal, NonFinite)
        assert refusal.ordinal == 1
        assert all(bool(kept.isfinite().all()) for kept in worker.residuals if kept is not None)
    assert workers[0].state() == workers[1].state()


@every_rule
@pytest.mark.parametrize("tau", [1e-36, 1e-3, 0.3])
def test_extreme_taus_and_values_are_the_same_on_the_gpu(rule: str, tau: float) -> None:
    workers = both(f"{rule}({tau!r})", [1000, 3000])
    for gradient in gradients(4000, tau):
        gradient[::97] = 1e37
        payloads = [
            each.compressor.compress(each.parts(gradient), each.layout, each.context).payload.tobytes()
            for each in workers
        ]
        assert payloads[0] == payloads[1]
        assert workers[0].state() == workers[1].state()


@every_rule
def test_updates_are_added_one_by_one_as_on_the_cpu(rule: str) -> None:
    (worker, _) = both(f"{rule}(1e-36)", [5000])
    (gradient,) = gradients(5000, 1e-36, steps=1)
    payload = worker.compressor.compress(worker.parts(gradient), worker.layout, worker.context).payload
    incoming = worker.compressor.read(payload, worker.layout)
    assert not isinstance(incoming, NonFinite)
    ((update, _),) = incoming
    on_cpu, on_gpu = torch.full((5000,), 1e-40), torch.full((5000,), 1e-40, device="cuda")
    add_to(update, on_cpu)
    add_to(update, on_gpu)
    assert bits(on_cpu) == bits(on_gpu)


def test_only_rules_with_a_pass_of_their_own_stay_on_the_gpu() -> None:
    for line in METHODS:
        config = method(line)
        own = config.kind in ON_DEVICE and getattr(config, "quantize", None) is None
        assert Compressor(config).rule.on_any_device == own, line


@pytest.fixture(params=["gloo", "nccl"])
def one_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A process group of one worker; the backend's name."""
    if request.param == "nccl" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    dist.init_process_group(request.param, init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


LINES = [
    *(f"{rule}(0.05)" for rule in ON_DEVICE),
    "wgt(density(0.1, every=2), momentum=0.5, exempt=exempt(names=['bias']))",
    "topk(0.1)",
    "wgt(0.05) | quantile(3, block=64) | golomb_rice",
    "chunked_topk(8, chunk=64)",
    "linear(4)",
    "fp16(decay=1)",
    "fp8",
]


@pytest.mark.parametrize("line", LINES)
def test_a_worker_on_the_gpu_keeps_the_ledger_of_one_on_the_cpu(line: str, one_worker: str) -> None:
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
        state = CompressionState(ddp, line)
        KEPT.append(state)
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
        kept = {name: bits(each) for name, each in sorted({**state.residuals}.items())}
        moving = {name: bits(each) for name, each in sorted({**state.velocities}.items())}
        found.append((state.totals.state_dict(), kept, moving, state.memories))
    assert found[0] == found[1]
    assert 0 < found[0][0]["sent"] <= found[0][0]["elements"]


@pytest.mark.parametrize("line", ["topk(0.1)", "wgt(0.05, momentum=0.5)", "linear(4)"])
def test_a_state_goes_from_the_gpu_through_a_file_to_the_cpu(
    line: str, one_worker: str, tmp_path: Path
) -> None:
    model = nn.Linear(30, 20).to("cuda")
    ddp = DistributedDataParallel(model)
    state = CompressionState(ddp, line)
    KEPT.append(state)
    ddp.register_comm_hook(state, compressed_allgather)
    ddp(torch.randn(4, 30, device="cuda")).square().sum().backward()
    torch.save(state.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", map_location="cpu", weights_only=True)
    group = dist.new_group(backend="gloo") if one_worker == "nccl" else dist.group.WORLD
    there = CompressionState(DistributedDataParallel(nn.Linear(30, 20), process_group=group), line)
    there.load_state_dict(loaded)
    KEPT.append(there)
    for name, kept in state.residuals.items():
        assert there.residuals[name].device.type == "cpu"
        assert bits(there.residuals[name]) == bits(kept)
