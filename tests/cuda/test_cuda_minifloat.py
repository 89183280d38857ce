"""Short floats on the emulated device against the CPU's, bit for bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cases import in_turn
from messages import write_amounts

from taugrad.compressors.ops.cpu import blockwise, minifloat
from taugrad.compressors.ops.cpu.minifloat import HalfFormat
from taugrad.compressors.ops.cuda.minifloat import fp8_pass, fp8_values, half_pass, half_values
from taugrad.compressors.ops.cuda.reports import Reports

F32 = np.float32
MAX = np.finfo(F32).max
SIZES = (0, 1, 31, 32, 33, 1000, 70_001)
KINDS: tuple[HalfFormat, ...] = ("fp16", "bf16")


def numbers(rng: np.random.Generator, n: int) -> Any:
    """Of all magnitudes, halfway cases among them."""
    wide = (rng.standard_normal(n) * 10.0 ** rng.uniform(-42, 37, n)).astype(F32)
    near = (rng.integers(-(2**13), 2**13, n) * 2.0 ** rng.integers(-26, 4)).astype(F32)
    special = rng.choice(np.array([0.0, -0.0, MAX / 2, -MAX / 2, 65504, 65520, 448, 464, 1e-45], F32), n)
    kind = rng.random(n)
    return np.where(kind < 0.3, wide, np.where(kind < 0.9, near, special)).astype(F32)


def assert_close_to_sum(found: Any, residual: Any, gradient: Any, at: int) -> None:
    """The contract for sums that are not finite, of which there is one at a place."""
    expected = residual + np.where(np.arange(residual.size) == at, F32(0), gradient)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-5)


@in_turn("kind", KINDS)
@in_turn("n", SIZES)
def test_halves_of_any_size(device: Any, kind: HalfFormat, n: int) -> None:
    rng = np.random.default_rng(n)
    gradient = numbers(rng, n)
    for residual in (numbers(rng, n), None):
        kept = None if residual is None else device.place(residual)
        symbols, expected, reports = device.empty(n, np.uint16), np.zeros(n, np.uint16), Reports(device, 1)
        half_pass(device, kind, kept, device.place(gradient), symbols, reports)
        minifloat.half_pass(kind, residual, gradient, expected)
        assert symbols.tobytes() == expected.tobytes()
        assert not reports.fetch()[0].nonfinite
        if residual is not None:
            assert kept.tobytes() == residual.tobytes()
        for add in (False, True):
            out = numbers(rng, n)
            device_out = device.place(out)
            half_values(device, kind, symbols, device_out, add)
            write_amounts(kind, expected, 0, (), out, add=add)
            assert device_out.tobytes() == out.tobytes()


@in_turn("kind", KINDS)
def test_all_halves_come_back(device: Any, kind: HalfFormat) -> None:
    symbols = np.arange(65_536, dtype=np.uint16)
    out = device.empty(symbols.size, F32)
    half_values(device, kind, device.place(symbols), out, False)
    short = torch.from_numpy(symbols.view(np.int16)).view(torch.float16 if kind == "fp16" else torch.bfloat16)
    expected = short.float().numpy()
    finite = np.isfinite(expected)
    assert out[finite].tobytes() == expected[finite].tobytes()
    again = device.empty(int(finite.sum()), np.uint16)
    half_pass(device, kind, None, out[finite], again, Reports(device, 1))
    assert again.tobytes() == symbols[finite].tobytes()


@in_turn("n", SIZES)
@in_turn("block", [2048, 0, 100])
def test_float8_of_any_size(device: Any, n: int, block: int) -> None:
    rng = np.random.default_rng(n)
    blocks = blockwise.block_count(n, block)
    for gradient in (numbers(rng, n), np.zeros(n, F32), (rng.standard_normal(n) * 1e-40).astype(F32)):
        for residual in (gradient * rng.choice(np.array([0.5, -0.5, 0.3], F32), n), None):
            kept = None if residual is None else device.place(residual)
            symbols, exponents = device.empty(n, np.uint8), device.empty(blocks, np.int8)
            expected, tables, reports = np.zeros(n, np.uint8), np.zeros(blocks, np.int8), Reports(device, 1)
            fp8_pass(device, kept, device.place(gradient), block, symbols, exponents, reports)
            if n:
                minifloat.fp8_pass(residual, gradient, block, expected, tables)
            assert symbols.tobytes() == expected.tobytes()
            assert exponents.tobytes() == tables.tobytes()
            assert not reports.fetch()[0].nonfinite
            if residual is not None:
                assert kept.tobytes() == residual.tobytes()
            for add in (False, True):
                out = numbers(rng, n)
                device_out = device.place(out)
                fp8_values(device, symbols, block, exponents, device_out, add)
                if n:
                    write_amounts("fp8", expected, block, (tables,), out, add=add)
                assert device_out.tobytes() == out.tobytes()


@in_turn("broken", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told_and_the_rest_is_taken_up(device: Any, broken: float) -> None:
    rng = np.random.default_rng(9)
    residual, gradient = (rng.standard_normal(9000).astype(F32) for _ in range(2))
    gradient[5001] = broken
    for kind in KINDS:
        kept, reports = device.place(residual), Reports(device, 1)
        half_pass(device, kind, kept, device.place(gradient), device.empty(9000, np.uint16), reports)
        assert reports.fetch()[0].nonfinite
        assert_close_to_sum(kept, residual, gradient, 5001)
        assert kept[5001] == residual[5001]
    for block in (512, 0):
        kept, reports = device.place(residual), Reports(device, 1)
        symbols, exponents = device.empty(9000, np.uint8), device.empty(18, np.int8)
        fp8_pass(device, kept, device.place(gradient), block, symbols, exponents, reports)
        assert reports.fetch()[0].nonfinite
        assert_close_to_sum(kept, residual, gradient, 5001)
        assert kept[5001] == residual[5001]


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("minifloat")
