"""Bins of equal population on the emulated device against the CPU's, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from messages import write_amounts

from taugrad.compressors.ops.cpu import blockwise, quantile
from taugrad.compressors.ops.cuda.quantile import quantile_pass, quantile_values
from taugrad.compressors.ops.cuda.reports import Report, Reports

F32 = np.float32
MAX = np.finfo(F32).max


def numbers(rng: np.random.Generator, n: int, kind: str) -> Any:
    if kind == "ties":
        return rng.choice(np.array([0.0, -0.0, 0.25, -1.5, 3.0], F32), n, p=[0.4, 0.3, 0.1, 0.1, 0.1])
    if kind == "constant":
        return np.full(n, -0.3, F32)
    if kind == "tiny":
        return (rng.standard_normal(n) * 1e-39).astype(F32)
    if kind == "huge":
        return rng.choice(np.array([MAX, -MAX, MAX / 3, 1.0, 0.0], F32) / 2, n)
    return (rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 2, n)).astype(F32)


class Run:
    """A pass on the device, and the arrays that it filled."""

    def __init__(
        self, device: Any, residual: Any, gradient: Any, bits: int, block: int, kind: Any = "float32"
    ) -> None:
        n, blocks = gradient.size, blockwise.block_count(gradient.size, block)
        self.residual = None if residual is None else device.place(residual)
        self.symbols = device.empty(n, np.uint8 if bits <= 8 else np.uint16)
        self.tables, self.exponents = device.empty(blocks << bits, np.uint16), device.empty(blocks, np.int8)
        reports = Reports(device, 1)
        quantile_pass(
            device, self.residual, device.place(gradient), bits, block, self.symbols, self.tables,
            self.exponents, reports, gradient_type=kind,
        )  # fmt: skip
        self.report: Report = reports.fetch()[0]


def check(device: Any, residual: Any, gradient: Any, bits: int, block: int) -> None:
    found = Run(device, residual, gradient, bits, block)
    symbols, exponents = np.zeros_like(found.symbols), np.zeros_like(found.exponents)
    tables = np.zeros((exponents.size, 1 << bits), np.uint16)
    kept = None if residual is None else residual.copy()
    expected = quantile.quantile_pass(kept, gradient, bits, block, symbols, tables, exponents)
    assert found.exponents.tobytes() == exponents.tobytes()
    assert found.tables.tobytes() == tables.tobytes()
    assert found.symbols.tobytes() == symbols.tobytes()
    assert not found.report.nonfinite
    assert not expected.nonfinite
    if kept is not None:
        assert found.residual.tobytes() == kept.tobytes()
        squares = float(np.square(kept, dtype=np.float64).sum())
        assert found.report.residual_squares == pytest.approx(squares, rel=1e-9)
    for add in (False, True):
        out = np.linspace(-1, 1, gradient.size, dtype=F32)
        device_out = device.place(out)
        write_amounts("quantile", symbols, block, (exponents, tables), out, add=add)
        quantile_values(device, found.symbols, block, found.tables, found.exponents, device_out, add)
        assert device_out.tobytes() == out.tobytes()


@in_turn("n", [0, 1, 31, 32, 33, 1000, 9000])
@in_turn(("bits", "block"), [(8, 2048), (1, 0), (10, 100), (3, 16), (4, 4096), (8, 4097)])
def test_any_size(device: Any, n: int, bits: int, block: int) -> None:
    rng = np.random.default_rng(n)
    n = min(n, 1000) if block == 16 else n
    check(device, numbers(rng, n, "normal"), numbers(rng, n, "normal"), bits, block)
    check(device, None, numbers(rng, n, "normal"), bits, block)


@in_turn(("bits", "block"), [(8, 4096), (8, 0), (11, 0), (9, 20_000)])
def test_many_blocks_and_a_whole_layer(device: Any, bits: int, block: int) -> None:
    rng, n = np.random.default_rng(bits), 70_001
    check(device, numbers(rng, n, "normal"), numbers(rng, n, "normal"), bits, block)


@in_turn("kind", ["ties", "constant", "tiny", "huge"])
@in_turn(("bits", "block"), [(4, 50), (8, 2048), (16, 5000), (8, 0)])
def test_ties_and_edges(device: Any, kind: str, bits: int, block: int) -> None:
    rng = np.random.default_rng(5)
    n = 60 if bits == 16 else 5000
    check(device, numbers(rng, n, kind), numbers(rng, n, kind), bits, block)
    check(device, None, numbers(rng, n, kind), bits, block)


@in_turn("broken", [np.nan, -np.nan, np.inf, -np.inf])
@in_turn("block", [512, 0])
def test_what_is_not_finite_is_told_and_the_rest_is_taken_up(device: Any, broken: float, block: int) -> None:
    rng = np.random.default_rng(7)
    residual, gradient = (rng.standard_normal(6000).astype(F32) for _ in range(2))
    gradient[5001] = broken
    found = Run(device, residual, gradient, 8, block)
    assert found.report.nonfinite
    expected = residual + np.where(np.arange(6000) == 5001, F32(0), gradient)
    np.testing.assert_allclose(found.residual, expected, rtol=1e-6, atol=1e-5)
    assert found.residual[5001] == residual[5001]
    assert Run(device, None, gradient, 8, block).report.nonfinite


@in_turn("kind", ["float16", "bfloat16"])
@in_turn("block", [300, 0])
def test_short_gradients_are_widened(device: Any, kind: str, block: int) -> None:
    tensor = torch.randn(5000, generator=torch.Generator().manual_seed(8)).to(getattr(torch, kind))
    bits = tensor.view(torch.int16).numpy().view(np.uint16)
    for residual in (np.ones(5000, F32), None):
        expected = Run(device, residual, tensor.float().numpy(), 8, block)
        found = Run(device, residual, bits, 8, block, kind)
        assert found.symbols.tobytes() == expected.symbols.tobytes()
        assert found.tables.tobytes() == expected.tables.tobytes()
        assert residual is None or found.residual.tobytes() == expected.residual.tobytes()


def test_no_symbol_leads_out_of_a_table(device: Any) -> None:
    tables, out = device.place(np.arange(4, dtype=np.uint16)), device.zeros(256, F32)
    symbols = device.place(np.arange(256, dtype=np.uint8))
    quantile_values(device, symbols, 0, tables, device.zeros(1, np.int8), out, False)
    assert out.tolist() == [2.0**-24 * (symbol % 4) for symbol in range(256)]


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("quantile")


@in_turn("n", [513, 1100, 1152, 2300, 3000])
def test_blocks_whose_sorted_keys_need_more_room_than_they_have_threads(n: int, device: Any) -> None:
    """Keys are sorted in a power of two of them; those behind the block must count as none."""
    values = np.random.default_rng(n).standard_normal(n).astype(F32)
    dirty = np.full(4096, 1.0, F32)  # leaves its keys in shared memory
    for gradient in (dirty, values):
        check(device, np.zeros(gradient.size, F32), gradient, 2, 0)
