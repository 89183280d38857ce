"""Uniform quantization on the emulated device against the CPU's, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from messages import write_amounts

from taugrad.compressors.ops.cpu import blockwise, linear
from taugrad.compressors.ops.cuda.linear import (
    Ranges,
    extremes,
    fetch_extremes,
    linear_pass,
    linear_values,
)
from taugrad.compressors.ops.cuda.reports import Report, Reports

F32 = np.float32
MAX = np.finfo(F32).max
SIZES = (0, 1, 31, 32, 33, 1000, 70_001)


def numbers(rng: np.random.Generator, n: int, kind: str) -> Any:
    if kind == "constant":
        return np.full(n, -0.3, F32)
    if kind == "tiny":
        return (rng.standard_normal(n) * 1e-39).astype(F32)
    if kind == "zeros":
        return rng.choice(np.array([0.0, -0.0], F32), n)
    if kind == "huge":
        return rng.choice(np.array([MAX, -MAX, MAX / 3, 1.0, 0.0], F32) / 2, n)
    return (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 3)).astype(F32)


class Run:
    """A pass on the device; arrays as a message would take them."""

    def __init__(
        self, device: Any, residual: Any, gradient: Any, bits: int, block: int, ranges: bool = False
    ) -> None:
        n, blocks = gradient.size, blockwise.block_count(gradient.size, block)
        self.residual = None if residual is None else device.place(residual)
        self.symbols = device.empty(n, np.uint8 if bits <= 8 else np.uint16)
        self.lows, self.steps = device.empty(blocks, F32), device.empty(blocks, F32)
        added, reports = device.place(gradient), Reports(device, 1)
        found: Ranges | None = None
        if ranges:
            found = extremes(device, self.residual, added, block, reports)
            self.extremes = fetch_extremes(device, found)
        linear_pass(
            device, self.residual, added, bits, block, self.symbols, self.lows, self.steps, reports,
            ranges=found,
        )  # fmt: skip
        assert added.tobytes() == gradient.tobytes()
        self.report: Report = reports.fetch()[0]


def check(device: Any, residual: Any, gradient: Any, bits: int, block: int, ranges: bool = False) -> None:
    found = Run(device, residual, gradient, bits, block, ranges)
    symbols, lows, steps = (np.zeros_like(each) for each in (found.symbols, found.lows, found.steps))
    kept = None if residual is None else residual.copy()
    expected = linear.linear_pass(kept, gradient, bits, block, symbols, lows, steps)
    assert found.symbols.tobytes() == symbols.tobytes()
    assert found.lows.tobytes() == lows.tobytes()
    assert found.steps.tobytes() == steps.tobytes()
    assert not found.report.nonfinite
    assert not expected.nonfinite
    if kept is not None:
        assert found.residual.tobytes() == kept.tobytes()
        squares = float(np.square(kept, dtype=np.float64).sum())
        assert found.report.residual_squares == pytest.approx(squares, rel=1e-9)
    for add in (False, True):
        out = np.linspace(-1, 1, gradient.size, dtype=F32)
        device_out = device.place(out)
        write_amounts("linear", symbols, block, (lows, steps), out, add=add)
        linear_values(device, found.symbols, block, found.lows, found.steps, device_out, add)
        assert device_out.tobytes() == out.tobytes()


@in_turn("n", SIZES)
@in_turn(("bits", "block"), [(8, 2048), (1, 0), (16, 100), (4, 8192), (12, 5000), (3, 16)])
def test_any_size(device: Any, n: int, bits: int, block: int) -> None:
    if block == 16:
        n = min(n, 1000)
    rng = np.random.default_rng(n)
    check(device, numbers(rng, n, "normal"), numbers(rng, n, "normal"), bits, block)
    check(device, None, numbers(rng, n, "normal"), bits, block)


@in_turn("kind", ["constant", "tiny", "zeros", "huge"])
@in_turn("block", [50, 4096, 0])
def test_ranges_at_the_edges(device: Any, kind: str, block: int) -> None:
    rng = np.random.default_rng(5)
    gradient = numbers(rng, 9000, kind)
    for bits in (1, 7, 16):
        check(device, numbers(rng, 9000, kind), gradient, bits, block)
        check(device, None, gradient, bits, block)


@in_turn("n", [1, 33, 9000])
@in_turn("block", [0, 1024])
def test_ranges_first_and_symbols_then(device: Any, n: int, block: int) -> None:
    rng = np.random.default_rng(6)
    residual, gradient = numbers(rng, n, "normal"), numbers(rng, n, "normal")
    gradient[:1] = -0.0
    for kept in (residual, None):
        check(device, kept, gradient, 6, block, ranges=True)
        found = Run(device, kept, gradient, 6, block, ranges=True).extremes
        expected = linear.extremes(None if kept is None else kept.copy(), gradient, block)
        assert found.lows.tobytes() == expected.lows.tobytes()
        assert found.highs.tobytes() == expected.highs.tobytes()
        assert not found.nonfinite


@in_turn("broken", [np.nan, -np.nan, np.inf, -np.inf, MAX])
@in_turn(("block", "ranges"), [(512, False), (0, False), (0, True)])
def test_what_is_not_finite_is_told_and_the_rest_is_taken_up(
    device: Any, broken: float, block: int, ranges: bool
) -> None:
    rng = np.random.default_rng(7)
    residual, gradient = numbers(rng, 9000, "normal"), numbers(rng, 9000, "normal")
    at = 5001
    residual[at], gradient[at] = MAX, broken
    found = Run(device, residual, gradient, 8, block, ranges)
    assert found.report.nonfinite
    assert not ranges or found.extremes.nonfinite
    expected = residual + np.where(np.arange(9000) == at, F32(0), gradient)
    largest = np.abs(expected[np.arange(9000) != at]).max()
    np.testing.assert_allclose(found.residual, expected, rtol=1e-6, atol=float(largest) * 1e-6)
    assert found.residual[at] == MAX
    assert Run(device, None, gradient, 8, block).report.nonfinite == (not np.isfinite(F32(broken)))


def test_short_gradients_are_widened(device: Any) -> None:
    rng = np.random.default_rng(8)
    for kind in ("float16", "bfloat16"):
        tensor = torch.from_numpy(numbers(rng, 5000, "normal")).to(getattr(torch, kind))
        gradient, bits = tensor.float().numpy(), tensor.view(torch.int16).numpy().view(np.uint16)
        for block in (300, 0):
            expected = Run(device, np.ones(5000, F32), gradient, 8, block)
            blocks = blockwise.block_count(5000, block)
            residual, symbols = device.place(np.ones(5000, F32)), device.empty(5000, np.uint8)
            tables = device.empty(blocks, F32), device.empty(blocks, F32)
            linear_pass(
                device, residual, device.place(bits), 8, block, symbols, *tables, Reports(device, 1),
                gradient_type=kind,
            )  # fmt: skip
            assert symbols.tobytes() == expected.symbols.tobytes()
            assert residual.tobytes() == expected.residual.tobytes()


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("linear")
