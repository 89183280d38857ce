"""The k largest of every chunk on the emulated device against the CPU's, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn

from taugrad.compressors.ops.cpu import chunked
from taugrad.compressors.ops.cpu.threshold import SPARE
from taugrad.compressors.ops.cuda.chunked import chunked_pass
from taugrad.compressors.ops.cuda.reports import Reports

F32 = np.float32
MAX = np.finfo(F32).max


def numbers(rng: np.random.Generator, n: int, kind: str = "normal") -> Any:
    if kind == "ties":
        return rng.choice(np.array([0.0, -0.0, 0.25, -0.25, 1.5], F32), n)
    if kind == "zeros":
        return rng.choice(np.array([0.0, -0.0, 1e-45], F32), n, p=[0.6, 0.38, 0.02])
    if kind == "broken":
        return rng.choice(np.array([1.0, -2.0, MAX, np.nan, np.inf, -np.inf], F32), n)
    return (rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3, n)).astype(F32)


def run_both(device: Any, parameters: list[tuple[Any, Any]], chunk: int, keep: int) -> None:
    """Passes over parameters one behind the other; asserts that the CPU's results are the same."""
    n, base, sent = sum(residual.size for residual, _ in parameters), 3, 0
    words, values = np.zeros(n + SPARE, np.uint32), np.zeros(n + SPARE, F32)
    device_words, device_values = device.empty(n, np.uint32), device.empty(n, F32)
    reports, expected = Reports(device, len(parameters)), []
    for residual, gradient in parameters:
        kept = device.place(residual)
        chunked_pass(
            device, kept, device.place(gradient), chunk, keep, device_words, device_values, reports, base=base
        )
        result = chunked.chunked_pass(
            residual, gradient, chunk, keep, words, values, base=base, sent=sent, vectorized=False
        )
        assert kept.tobytes() == residual.tobytes()
        base, sent = base + residual.size, result.sent
        expected.append(result)
    assert device_words[:sent].tobytes() == words[:sent].tobytes()
    assert device_values[:sent].tobytes() == values[:sent].tobytes()
    assert set(device_words[sent:].tobytes()) <= {0xA5}
    for report, result in zip(reports.fetch(), expected, strict=True):
        assert (report.sent, report.nonfinite) == (result.sent, result.nonfinite)
        if np.isfinite(result.residual_squares):
            assert report.residual_squares == pytest.approx(result.residual_squares, rel=1e-4)


@in_turn("n", [0, 1, 31, 32, 33, 1000, 70_001])
@in_turn("chunk", [4, 64, 4096, 16_384])
def test_any_size(device: Any, n: int, chunk: int) -> None:
    rng = np.random.default_rng(n)
    n = min(n, 30 * chunk)
    for keep in {0, 1, chunk // 64, chunk // 3, chunk - 1, chunk}:
        run_both(device, [(numbers(rng, n), numbers(rng, n))], chunk, keep)


@in_turn("kind", ["ties", "zeros", "broken"])
@in_turn("chunk", [16, 1024, 8192])
def test_ties_zeros_and_what_is_not_finite(device: Any, kind: str, chunk: int) -> None:
    rng = np.random.default_rng(3)
    n = min(10_000, 20 * chunk + 5)
    for keep in (1, chunk // 4, chunk - 2, chunk):
        run_both(device, [(numbers(rng, n, kind), numbers(rng, n, kind))], chunk, keep)


def test_the_largest_chunk(device: Any) -> None:
    rng = np.random.default_rng(4)
    residual, gradient = numbers(rng, 140_000, "ties"), numbers(rng, 140_000)
    run_both(device, [(residual, gradient)], chunked.LARGEST_CHUNK, 100)


def test_parameters_of_a_bucket_are_chained_on_the_device(device: Any) -> None:
    rng = np.random.default_rng(5)
    sizes = (700, 0, 1, 9000, 33)
    run_both(device, [(numbers(rng, n), numbers(rng, n)) for n in sizes], 128, 5)


def test_short_gradients_are_widened(device: Any) -> None:
    for kind in ("float16", "bfloat16"):
        tensor = torch.randn(5000, generator=torch.Generator().manual_seed(6)).to(getattr(torch, kind))
        bits = tensor.view(torch.int16).numpy().view(np.uint16)
        found = []
        for gradient, dtype in ((tensor.float().numpy(), "float32"), (bits, kind)):
            residual, words, values = (device.zeros(5000, dtype) for dtype in (F32, np.uint32, F32))
            chunked_pass(
                device, residual, gradient, 512, 9, words, values, Reports(device, 1), gradient_type=dtype
            )
            found.append((residual.tobytes(), words.tobytes(), values.tobytes()))
        assert found[0] == found[1]


def test_arguments_out_of_range_are_refused(device: Any) -> None:
    a = np.zeros(4, F32)
    for chunk, keep in ((1, 1), (6, 1), (1 << 17, 1), (4, 5), (4, -1)):
        with pytest.raises(ValueError, match="must be"):
            chunked_pass(device, a, a, chunk, keep, a, a, Reports(device, 1))


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("chunked")
