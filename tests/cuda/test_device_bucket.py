"""A bucket on a GPU, emulated or real, against the CPU: payloads, residuals, velocities and tallies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from methods import IN_LOCAL_STEPS, MESSAGES
from numpy.typing import NDArray
from workbench import Step, Worker

from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.compressor import Worker as WorkerRecord
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.methods import CompressedMethod, read_config
from taugrad.compressors.methods.base import Exempt
from taugrad.compressors.ops import ops_for
from taugrad.compressors.ops.interface import Ops, Readback

every_method = pytest.mark.parametrize("line", [*MESSAGES, *IN_LOCAL_STEPS])

NAMES = ("head.bias", "first.weight", "empty", "one.bias", "middle.weight")
SIZES = (31, 1000, 0, 1, 33)


def gradients(
    steps: int, sizes: Sequence[int] = SIZES, seed: int = 0, tau: float = 0.004
) -> list[list[NDArray[np.float32]]]:
    """Values around the thresholds of MESSAGES, multiples of one, zeros of both signs and denormals."""
    rng, n, made = np.random.default_rng(seed), sum(sizes), []
    for _ in range(steps):
        kind = rng.random(n)
        values = rng.standard_normal(n) * 5 * tau
        values = np.where(kind < 0.1, rng.integers(-300, 301, n) * tau, values)
        values = np.where(kind > 0.95, rng.choice([0.0, -0.0, 1e-45, -1e-40], n), values)
        made.append(np.split(values.astype(np.float32), np.cumsum(sizes)[:-1]))
    return made


def both(ops: Ops, line: str, sizes: Sequence[int] = SIZES, **options: Any) -> tuple[Worker, Worker]:
    """A worker on the CPU, and one on the device."""
    names = NAMES if len(sizes) == len(NAMES) else None
    cpu, there = (Worker(line, sizes, names=names, ops=backend, **options) for backend in (None, ops))
    return cpu, there


def check_step(workers: Sequence[Worker], given: Sequence[NDArray[np.float32]], **options: bool) -> Step:
    """One step of both, which must be the same to the bit, and what three workers that sent it add up to."""
    due, actual = (worker.step(given, **options) for worker in workers)
    assert actual.payloads == due.payloads
    assert actual.refused == due.refused
    if due.refused and workers[1].device.type == "cuda":
        for i in range(len(given)):  # putting back a block of quantized values rounds
            mine, other = (worker.residual(i) for worker in workers)
            assert np.allclose(mine, other, rtol=1e-5, atol=1e-7)
    else:
        assert workers[1].state == workers[0].state
    assert [tensor.tobytes() for tensor in actual.decoded] == [tensor.tobytes() for tensor in due.decoded]
    for one, other in zip(actual.tallies, due.tallies, strict=True):
        assert (one.name, one.elements, one.sent, one.tau, one.paper_bits) == (
            other.name, other.elements, other.sent, other.tau, other.paper_bits,
        )  # fmt: skip
        if other.residual_squares < 1e30:  # it is a metric, in float32
            assert one.residual_squares == pytest.approx(other.residual_squares, rel=1e-4, abs=1e-30)
    if not due.refused:
        totals = []
        for worker in workers:
            total = torch.full((sum(worker.sizes),), 1e-40, device=worker.device)
            payloads = [np.frombuffer(due.payloads[0], np.uint8)] * 3
            incoming = worker.compressor.read_all(dict(enumerate(payloads)))
            worker.compressor.total(incoming, 3, total)
            totals.append(total.cpu().numpy().tobytes())
        assert totals[0] == totals[1]
    return due


@pytest.mark.parametrize(
    "line",
    [
        "linear(4, block=16)",
        "linear(2)",
        "quantile(8)",
        "fp8(decay=1)",
        "fp16",
        "bf16(decay=0.5)",
        "sign",
        "qsgd",
        "natural",
    ],
)
def test_messages_of_fixed_size_stay_on_the_device(line: str, device: Ops) -> None:
    """Their bytes and residuals are the CPU's, and they stand for what messages between hosts do."""
    method, names = read_config(line), [f"w{number}" for number in range(len(SIZES))]
    assert isinstance(method, CompressedMethod)
    method = method.model_copy(update={"exempt": Exempt(names=("w4",))})
    kept, messages, sums = [], [], []
    for ops, fixed in ((device, True), (ops_for(torch.device("cpu")), True), (device, False)):
        readback = Readback(ops) if fixed else None
        worker = WorkerRecord(ops, hold_back_zeros=True, readback=readback)
        compressor = Compressor(method, worker, Shard.whole(dict(zip(names, SIZES, strict=True))))
        message, total = [], torch.empty(sum(SIZES), device=ops.device)
        for number, given in enumerate(gradients(3)):
            given[1] *= number != 1  # held back
            placed = [torch.from_numpy(gradient).to(ops.device) for gradient in given]
            outgoing = compressor.compress(placed, number)
            if readback is not None:
                readback.fetch()
            assert not outgoing.complete()
            message.append(bytes(ops.fetch_all([outgoing.payload])[0]) if fixed else b"")
            compressor.total([compressor.read(outgoing.payload)] * 2, 3, total)
            message.append(str(list(outgoing.tallies)).split("residual_squares")[0].encode())
        kept.append([residual.tolist() for residual in compressor.feedback.residuals.values()])
        messages.append(message)
        sums.append(total.tolist())
        assert not fixed or compressor.nbytes == len(message[0])
    assert kept[0] == kept[1] == kept[2]
    assert messages[0] == messages[1]
    assert sums[0] == sums[1] == sums[2]


@every_method
def test_buckets_become_the_same_payloads_as_on_the_cpu(line: str, device: Ops) -> None:
    workers = both(device, line)
    for given in gradients(3):
        check_step(workers, given)


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
def test_large_buckets(line: str, device: Ops) -> None:
    workers = both(device, line, (70_001, 5))
    for given in gradients(2, (70_001, 5)):
        check_step(workers, given)


@in_turn("dtype", [torch.float16, torch.bfloat16])
@in_turn(
    "line",
    [
        "wgt(density(0.05), momentum=0.9)",
        "chunked_topk(8, chunk=64)",
        "quantile(3, block=100, exempt=exempt(names=['*.bias']))",
        "entropy(decay=0)",
        "bf16",
    ],
)
def test_short_floats(line: str, dtype: torch.dtype, device: Ops) -> None:
    workers = both(device, line, dtype=dtype)
    for given in gradients(2, seed=1):
        check_step(workers, given)


@every_method
def test_parameters_without_a_gradient_are_held_back(line: str, device: Ops) -> None:
    workers = both(device, line)
    first, second = gradients(2, seed=2)
    second[1][:] = -0.0
    for given in (first, second, [np.zeros(n, np.float32) for n in SIZES]):
        check_step(workers, given, hold_back_zeros=True)


@every_method
def test_what_is_put_back(line: str, device: Ops) -> None:
    workers = both(device, line)
    for given in gradients(2, seed=3):
        for worker in workers:
            worker.step(given)
            worker.put_back()
        assert workers[0].state == workers[1].state


@every_method
@in_turn("broken", [{0: 5}, {1: 9, 4: 30}, {3: 0}])
def test_gradients_that_are_not_finite_are_refused(line: str, broken: dict[int, int], device: Ops) -> None:
    workers = both(device, line)
    first, second = gradients(2, seed=4)
    for value, (parameter, at) in zip((np.nan, -np.inf), broken.items(), strict=False):
        second[parameter][at] = value
    check_step(workers, first)
    assert check_step(workers, second).refused == [min(broken)]


@in_turn("line", ["wgt(0.02)", "topk(0.1)", "linear(4)", "fp16(exempt=exempt(smaller_than=9))"])
def test_a_bucket_without_elements(line: str, device: Ops) -> None:
    check_step(both(device, line, (0,)), [np.empty(0, np.float32)])
