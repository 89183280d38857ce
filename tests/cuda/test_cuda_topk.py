"""The k largest on the emulated device against the CPU's, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors.ops.cpu import topk
from taugrad.compressors.ops.cpu.threshold import SPARE
from taugrad.compressors.ops.cuda.reports import Reports
from taugrad.compressors.ops.cuda.topk import sampled_magnitude, topk_pass

F32 = np.float32
MAX = np.finfo(F32).max
SIZES = (0, 1, 31, 32, 33, 1000, 4097, 70_001)


def numbers(rng: np.random.Generator, n: int, kind: str = "normal") -> Any:
    if kind == "ties":
        return rng.choice(np.array([0.0, -0.0, 0.25, -0.25, 1.5, -1e-39], F32), n)
    if kind == "tiny":
        return (rng.standard_normal(n) * 1e-38).astype(F32)
    if kind == "huge":
        return rng.choice(np.array([MAX, -MAX, 1e36, -1e36, 1.0], F32) / 2, n)
    if kind == "clustered":
        return (rng.standard_normal(n) * np.where(np.arange(n) // 500 % 3 == 1, 1.0, 1e-4)).astype(F32)
    return (rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3, n)).astype(F32)


def run_both(device: Any, parameters: list[tuple[Any, Any, int]], offset: int = 0) -> list[topk.TopkPass]:
    """Passes over parameters one behind the other; asserts that the CPU's results are the same."""
    n, base, sent = sum(residual.size for residual, _, _ in parameters), 7, 0
    words, values = np.zeros(n + SPARE, np.uint32), np.zeros(n + SPARE, F32)
    device_words, device_values = device.empty(n, np.uint32), device.empty(n, F32)
    reports, expected = Reports(device, len(parameters)), []
    for residual, gradient, k in parameters:
        whole = device.zeros(residual.size + offset, F32)
        kept = whole[offset:]
        kept[:] = residual
        topk_pass(device, kept, device.place(gradient), k, device_words, device_values, reports, base=base)
        result = topk.topk_pass(residual, gradient, k, words, values, base=base, sent=sent)
        assert kept.tobytes() == residual.tobytes()
        base, sent = base + residual.size, result.sent
        expected.append(result)
    assert device_words[:sent].tobytes() == words[:sent].tobytes()
    assert device_values[:sent].tobytes() == values[:sent].tobytes()
    assert set(device_words[sent:].tobytes()) <= {0xA5}
    for report, result in zip(reports.fetch(), expected, strict=True):
        assert (report.sent, report.nonfinite, report.tau) == (result.sent, result.nonfinite, result.tau)
        if np.isfinite(result.residual_squares):
            assert report.residual_squares == pytest.approx(result.residual_squares, rel=1e-4)
    return expected


@in_turn("n", SIZES)
def test_any_size_and_number(device: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    for k in {0, 1, n // 100, n // 3, max(n - 1, 0), n, n + 5}:
        run_both(device, [(numbers(rng, n), numbers(rng, n), k)])


@in_turn("kind", ["ties", "tiny", "huge", "clustered"])
@in_turn("offset", [0, 1, 3])
def test_ties_and_edges(device: Any, kind: str, offset: int) -> None:
    rng = np.random.default_rng(3)
    n = 9001
    for k in (1, 10, 2000, 5000, n):
        run_both(device, [(numbers(rng, n, kind), numbers(rng, n, kind), k)], offset)


def test_parameters_of_a_bucket_are_chained_on_the_device(device: Any) -> None:
    rng = np.random.default_rng(4)
    sizes = (700, 0, 1, 9000, 33)
    run_both(device, [(numbers(rng, n), numbers(rng, n), -(-n // 20)) for n in sizes])


@in_turn("broken", [np.nan, np.inf, -np.inf, MAX])
def test_nothing_is_sent_where_a_sum_is_not_finite(device: Any, broken: float) -> None:
    rng = np.random.default_rng(5)
    residual, gradient = numbers(rng, 5000), numbers(rng, 5000)
    residual[4500], gradient[4500] = MAX, broken
    after = numbers(rng, 50), numbers(rng, 50), 5
    broken_pass, next_pass = run_both(device, [(residual, gradient, 100), after])
    assert (broken_pass.sent, broken_pass.nonfinite, next_pass.sent) == (0, True, 5)


def test_short_gradients_are_widened(device: Any) -> None:
    for kind in ("float16", "bfloat16"):
        tensor = torch.randn(5000, generator=torch.Generator().manual_seed(6)).to(getattr(torch, kind))
        bits = tensor.view(torch.int16).numpy().view(np.uint16)
        found = []
        for gradient, dtype in ((tensor.float().numpy(), "float32"), (bits, kind)):
            residual, reports = device.place(np.ones(5000, F32)), Reports(device, 1)
            words, values = device.zeros(5000, np.uint32), device.zeros(5000, F32)
            topk_pass(device, residual, gradient, 50, words, values, reports, gradient_type=dtype)
            tau = sampled_magnitude(device, np.ones(5000, F32), gradient, 0.1, 100, gradient_type=dtype)
            found.append((residual.tobytes(), words.tobytes(), values.tobytes(), float(tau)))
        assert found[0] == found[1]


@in_turn("n", [0, 1, 33, 1000, 70_001])
def test_a_sampled_magnitude_is_the_cpus(device: Any, n: int) -> None:
    rng = np.random.default_rng(n)
    residual, gradient = numbers(rng, n), numbers(rng, n)
    gradient[::7] = np.nan
    for density in (0.0, 0.01, 0.07, 0.5, 1.0):
        for sample in (1, 100, 1 << 14):
            found = sampled_magnitude(device, device.place(residual), gradient, density, sample)
            assert found == topk.sampled_magnitude(residual, gradient, density, sample)


def test_arguments_out_of_range_are_refused(device: Any) -> None:
    a = np.zeros(1, F32)
    with pytest.raises(ValueError, match="k must be"):
        topk_pass(device, a, a, -1, a, a, Reports(device, 1))
    for density, sample in ((-0.1, 1), (1.1, 1), (0.5, 0)):
        with pytest.raises(ValueError, match="density must be"):
            sampled_magnitude(device, a, a, density, sample)


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("topk")
