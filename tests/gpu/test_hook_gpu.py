"""The GPU sends the same bytes as the CPU, from the same gradients, with every method."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from cases import in_turn
from methods import MESSAGES
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather
from taugrad.compressors.bucket.compressor import Outgoing, compressor_for
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method import CompressedMethod, read_config
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire.message import NonFinite

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]

THRESHOLDED = ("wgt", "bgt", "qgt", "strom")
NAMES = ("head.bias", "first.weight", "middle.weight")

KEPT: list[CompressionState] = []
"""To the end of the process: a thread of gloo's that frees a group last would wait for itself, and abort."""

every_method = pytest.mark.parametrize("line", MESSAGES)
every_rule = in_turn("rule", THRESHOLDED)


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
        self.compressor = compressor_for(method(line), torch.device(device))
        self.sizes, self.device = sizes, device
        config, rule = self.compressor.config, self.compressor.rule
        self.layout = self.compressor.layout(NAMES[: len(sizes)], sizes)
        exempt = set(self.layout.whole.ordinals)
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
    workers = [Worker(line, sizes, device) for device in ("cpu", "cuda")]
    assert [worker.compressor.ops.on_host for worker in workers] == [True, False]
    return workers


def sent(outgoing: Outgoing) -> bytes:
    return outgoing.payload.tobytes()


@every_method
@in_turn("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [3, 1000, 100_003])  # `make gpu` picks 1000
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
        assert sent(on_cpu) == sent(on_gpu)
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
    for due, found in zip(workers[0].residuals, workers[1].residuals, strict=True):
        if due is not None and found is not None:  # putting back a block of quantized values rounds
            assert torch.allclose(due, found.cpu(), rtol=1e-5, atol=1e-7)


@every_rule
@in_turn("tau", [1e-36, 1e-3, 0.3])
def test_extreme_taus_and_values_are_the_same_on_the_gpu(rule: str, tau: float) -> None:
    workers = both(f"{rule}({tau!r})", [1000, 3000])
    for gradient in gradients(4000, tau):
        gradient[::97] = 1e37
        payloads = [
            sent(each.compressor.compress(each.parts(gradient), each.layout, each.context))
            for each in workers
        ]
        assert payloads[0] == payloads[1]
        assert workers[0].state() == workers[1].state()


LARGE_LINES = [
    "wgt(0.02)",
    "qgt(0.004) | golomb_rice | huffman",
    "topk(0.01)",
    "chunked_topk(64)",
    "linear(4)",
    "fp16",
]


@in_turn("line", LARGE_LINES)
@in_turn("n", [0, 1, 31, 32, 33, 1000, 2**20 + 7, 25_600_000])
def test_every_size_becomes_the_same_payload(line: str, n: int) -> None:
    workers = both(line, [n])
    for gradient in gradients(n, 0.01, steps=1 if n > 2**21 else 3):
        outgoing = [
            each.compressor.compress(each.parts(gradient), each.layout, each.context) for each in workers
        ]
        assert sent(outgoing[0]) == sent(outgoing[1])
        assert workers[0].state() == workers[1].state()
        totals = []
        for worker, one in zip(workers, outgoing, strict=True):
            total = torch.zeros(n, device=worker.device)
            incoming = worker.compressor.read(one.payload, worker.layout)
            assert not isinstance(incoming, NonFinite)
            worker.compressor.add(incoming, total)
            totals.append(bits(total))
        assert totals[0] == totals[1]


@in_turn("line", ["wgt(2.5) | golomb_rice", "strom(2.5)", "topk(0.001)"])
def test_a_parameter_of_two_gibibytes_becomes_the_same_payload(line: str) -> None:
    """536,870,912 elements: byte offsets pass what 32 bits hold."""
    n = 2**29
    gradient = torch.randn(n, generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cpu", "cuda"):
        worker = Worker(line, [n], device)
        outgoing = worker.compressor.compress(worker.parts(gradient), worker.layout, worker.context)
        total = torch.zeros(n, device=device)
        incoming = worker.compressor.read(outgoing.payload, worker.layout)
        assert not isinstance(incoming, NonFinite)
        worker.compressor.add(incoming, total)
        digests = [hashlib.sha256(kept or b"").hexdigest() for kept in worker.state()]
        found.append((sent(outgoing), digests, hashlib.sha256(bits(total)).hexdigest()))
        del worker, outgoing, incoming, total
    assert found[0] == found[1]


@pytest.fixture(params=["gloo", "nccl"])
def one_worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A process group of one worker; the backend's name."""
    if request.param == "nccl" and not dist.is_nccl_available():
        pytest.skip("this torch has no NCCL")
    dist.init_process_group(request.param, init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield request.param
    dist.destroy_process_group()


LINES = [
    *(f"{rule}(0.05)" for rule in THRESHOLDED),
    "wgt(density(0.1, every=2), momentum=0.5, exempt=exempt(names=['bias']))",
    "topk(0.1)",
    "wgt(0.05) | quantile(3, block=64) | golomb_rice",
    "chunked_topk(8, chunk=64)",
    "linear(4)",
    "fp16(decay=1)",
    "fp8",
]


@in_turn("line", LINES)
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
        kept = {name: bits(each) for name, each in sorted({**state.feedback.residuals}.items())}
        moving = {name: bits(each) for name, each in sorted({**state.feedback.velocities}.items())}
        found.append((state.totals.state_dict(), kept, moving, state.feedback.memories))
    assert found[0] == found[1]
    assert 0 < found[0][0]["sent"] <= found[0][0]["elements"]


@in_turn("line", ["topk(0.1)", "wgt(0.05, momentum=0.5)", "linear(4)"])
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
    for name, kept in state.feedback.residuals.items():
        assert there.feedback.residuals[name].device.type == "cpu"
        assert bits(there.feedback.residuals[name]) == bits(kept)
