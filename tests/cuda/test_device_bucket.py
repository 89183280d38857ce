"""A bucket on the emulated device, against the CPU: the same payloads, residuals, velocities and tallies."""

from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from methods import MESSAGES

from taugrad.compressors.bucket.compressor import Compressor, Outgoing
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method import read_config
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire.message import NonFinite

every_method = pytest.mark.parametrize("line", MESSAGES)

SIZES = {"head.bias": 31, "first.weight": 1000, "empty": 0, "one.bias": 1, "middle.weight": 33}


def gradients(n: int, steps: int, seed: int = 0, scale: float = 0.02) -> list[torch.Tensor]:
    """Values around the thresholds of MESSAGES, multiples of one, zeros of both signs and denormals."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(steps):
        kind = rng.random(n)
        values = rng.standard_normal(n) * scale
        values = np.where(kind < 0.1, rng.integers(-300, 301, n) * 0.004, values)
        values = np.where(kind > 0.95, rng.choice([0.0, -0.0, 1e-45, -1e-40], n), values)
        made.append(torch.from_numpy(values.astype(np.float32)))
    return made


class Worker:
    """One worker's side of a method: what it keeps, and what it makes of gradients."""

    def __init__(
        self, compressor: Compressor, sizes: dict[str, int], *, hold_back_zeros: bool = False
    ) -> None:
        self.compressor, self.sizes = compressor, sizes
        self.layout = compressor.layout(list(sizes), list(sizes.values()))
        self.context = Context(hold_back_zeros=hold_back_zeros)
        self.residuals: dict[str, torch.Tensor] = {}
        self.velocities: dict[str, torch.Tensor] = {}
        config, rule = compressor.config, compressor.rule
        exempt = set(self.layout.whole.ordinals)
        for ordinal, (name, n) in enumerate(sizes.items()):
            if ordinal not in exempt and (rule.needs_residual or config.decay):
                self.residuals[name] = torch.zeros(n)
            if ordinal not in exempt and getattr(config, "momentum", 0):
                self.velocities[name] = torch.zeros(n)

    def compress(self, bucket: torch.Tensor) -> tuple[Outgoing, list[Part]]:
        parts = [
            Part(name, share, self.residuals.get(name), self.velocities.get(name))
            for name, share in zip(
                self.sizes, torch.split(bucket.clone(), list(self.sizes.values())), strict=True
            )
        ]
        return self.compressor.compress(parts, self.layout, self.context), parts

    def state(self) -> dict[str, Any]:
        return {
            "residuals": {name: each.numpy().tobytes() for name, each in self.residuals.items()},
            "velocities": {name: each.numpy().tobytes() for name, each in self.velocities.items()},
            "memories": self.context.memories,
        }


def both(gpu: Any, line: str, sizes: dict[str, int] = SIZES, **options: bool) -> tuple[Worker, Worker]:
    config: Any = read_config(line)
    return (
        Worker(Compressor(config), sizes, **options),
        Worker(Compressor(config, gpu), sizes, **options),
    )


def payload_of(outgoing: Outgoing) -> bytes:
    return outgoing.payload.tobytes()


def assert_same_step(cpu: Worker, there: Worker, bucket: torch.Tensor) -> bytes:
    """Compresses on both, reads on both; returns the payload."""
    on_cpu, _ = cpu.compress(bucket)
    on_device, _ = there.compress(bucket)
    payload = payload_of(on_cpu)
    assert payload_of(on_device) == payload
    assert there.state() == cpu.state()
    for due, found in zip(on_cpu.tallies, on_device.tallies, strict=True):
        assert (found.name, found.elements, found.sent, found.tau, found.paper_bits) == (
            due.name, due.elements, due.sent, due.tau, due.paper_bits,
        )  # fmt: skip
        assert found.residual_squares == pytest.approx(due.residual_squares, rel=1e-4, abs=1e-30)
    assert_same_reading(cpu, there, payload)
    return payload


def assert_same_reading(cpu: Worker, there: Worker, payload: bytes) -> None:
    """Three workers send the same."""
    payloads, totals = [np.frombuffer(payload, np.uint8)] * 3, []
    for worker in (cpu, there):
        total = torch.full((sum(worker.sizes.values()),), 1e-40)
        worker.compressor.total(worker.compressor.read_all(payloads, worker.layout), 3, total)
        for incoming in worker.compressor.read_all(payloads[:2], worker.layout):
            assert not isinstance(incoming, NonFinite)
            worker.compressor.add(incoming, total)
        totals.append(total.numpy().tobytes())
    assert totals[0] == totals[1]


@every_method
def test_buckets_become_the_same_payloads_as_on_the_cpu(line: str, gpu: Any) -> None:
    cpu, there = both(gpu, line)
    for iteration, bucket in enumerate(gradients(sum(SIZES.values()), 3)):
        cpu.context.iteration = there.context.iteration = iteration
        assert_same_step(cpu, there, bucket)


@in_turn(
    "line",
    [
        "wgt(0.02)",
        "qgt(0.004) | golomb_rice | huffman",
        "topk(0.01) | linear(4)",
        "chunked_topk(64)",
        "quantile(4)",
        "entropy",
    ],
)
def test_large_buckets_become_the_same_payloads(line: str, gpu: Any) -> None:
    cpu, there = both(gpu, line, {"large": 70_001, "small": 5})
    for bucket in gradients(70_006, 2):
        assert_same_step(cpu, there, bucket)


@in_turn("dtype", [torch.float16, torch.bfloat16])
@in_turn(
    "line",
    [
        "wgt(density(0.05), momentum=0.9)",
        "strom(0.01, clip=clip(2, to=2))",
        "topk(0.1)",
        "topk(0.1, sampled=True)",
        "chunked_topk(8, chunk=64)",
        "linear(4)",
        "quantile(3, block=100, exempt=exempt(names=['*.bias']))",
        "entropy(form='rms', floor=5, decay=0)",
        "entropy(decay=0)",
        "bf16",
        "fp8",
    ],
)
def test_short_floats_become_the_same_payloads(line: str, dtype: torch.dtype, gpu: Any) -> None:
    cpu, there = both(gpu, line)
    for iteration, bucket in enumerate(gradients(sum(SIZES.values()), 2, seed=1)):
        cpu.context.iteration = there.context.iteration = iteration
        assert_same_step(cpu, there, bucket.to(dtype))


@every_method
def test_parameters_without_a_gradient_are_held_back_as_on_the_cpu(line: str, gpu: Any) -> None:
    cpu, there = both(gpu, line, hold_back_zeros=True)
    for iteration, bucket in enumerate(gradients(sum(SIZES.values()), 2, seed=2)):
        cpu.context.iteration = there.context.iteration = iteration
        if iteration:
            bucket[31:1031] = -0.0
        assert_same_step(cpu, there, bucket)
    (nothing,) = torch.zeros(1, sum(SIZES.values()))
    assert_same_step(cpu, there, nothing)


@every_method
def test_what_is_put_back_is_the_same_as_on_the_cpu(line: str, gpu: Any) -> None:
    cpu, there = both(gpu, line)
    for bucket in gradients(sum(SIZES.values()), 2, seed=3):
        for worker in (cpu, there):
            outgoing, parts = worker.compress(bucket)
            worker.compressor.put_back(outgoing, parts)
        assert there.state() == cpu.state()


@every_method
@in_turn("broken", [[5], [40, 700, 1064], [1031]])
def test_gradients_that_are_not_finite_are_refused_as_on_the_cpu(
    line: str, broken: list[int], gpu: Any
) -> None:
    cpu, there = both(gpu, line)
    first, bucket = gradients(sum(SIZES.values()), 2, seed=4)
    bucket[broken] = torch.tensor([float("nan"), float("inf"), -float("inf")])[: len(broken)]
    assert_same_step(cpu, there, first)
    on_cpu, on_device = cpu.compress(bucket)[0], there.compress(bucket)[0]
    assert payload_of(on_device) == payload_of(on_cpu)
    assert there.state() == cpu.state()
    for due, found in zip(on_cpu.tallies, on_device.tallies, strict=True):
        assert (found.name, found.sent, found.paper_bits) == (due.name, 0, 0)
        assert found.residual_squares == pytest.approx(due.residual_squares, rel=1e-4, abs=1e-30)
    refusals = [each.compressor.read(on_cpu.payload, each.layout) for each in (cpu, there)]
    assert refusals[0] == refusals[1]
    assert isinstance(refusals[1], NonFinite)


@in_turn("line", ["wgt(0.02)", "topk(0.1)", "linear(4)", "fp16(exempt=exempt(smaller_than=9))"])
def test_a_bucket_without_elements(line: str, gpu: Any) -> None:
    cpu, there = both(gpu, line, {"nothing": 0})
    assert_same_step(cpu, there, torch.from_numpy(np.empty(0, np.float32)))


def counting(gpu: Any) -> Any:
    """The same device, which counts how often the host waits."""

    class Counting(type(gpu)):  # type: ignore[misc]
        waits = 0

        def fetch_all(self, arrays: Any) -> Any:
            self.waits += 1
            return super().fetch_all(arrays)

    return Counting()


@every_method
def test_how_often_the_host_waits_does_not_depend_on_how_many_parameters_there_are(
    line: str, gpu: Any
) -> None:
    waits = []
    for count in (3, 40):
        sizes = {f"p{i}.weight": 30 for i in range(count)} | {"one.bias": 3}
        counted = counting(gpu)
        _, there = both(counted, line, sizes)
        there.compress(gradients(30 * count + 3, 1)[0])
        waits.append(counted.waits)
    assert waits[0] == waits[1] <= 4


@in_turn("line", ["wgt(0.02)", "strom(0.01) | golomb_rice", "topk(0.1)", "chunked_topk(8, chunk=64)", "fp16"])
def test_the_host_waits_twice_and_not_to_read(line: str, gpu: Any) -> None:
    counted = counting(gpu)
    _, there = both(counted, line)
    (bucket,) = gradients(sum(SIZES.values()), 1)
    outgoing, _ = there.compress(bucket)
    assert counted.waits == 2
    received = there.compressor.read_all([outgoing.payload] * 2, there.layout)
    there.compressor.total(received, 2, torch.empty_like(bucket))
    assert counted.waits == 2
