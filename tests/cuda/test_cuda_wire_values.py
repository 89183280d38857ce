"""Checks of values and tables on the emulated device: they accept exactly what the CPU accepts."""

from collections.abc import Callable
from typing import Any

import numpy as np
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import linear, quantile, sparse
from taugrad.compressors.ops.cuda import wire_values as wire
from taugrad.compressors.ops.cuda.faults import Faults

F32 = np.float32
MAX = np.finfo(F32).max
FLOATS = np.array(
    [0.0, -0.0, 0.3, -0.3, 0.29999998, 1e-45, 2.0**-126, 1.1e-38, -1e-3, MAX, -MAX, MAX / 2, 1e34,
     np.inf, -np.inf, np.nan, -np.nan], F32,
)  # fmt: skip


def accepts(device: Any, check: Callable[..., None], *arguments: Any) -> bool:
    """Whether a check finds nothing wrong; arrays are placed on the device."""
    faults = Faults(device)
    placed = [device.place(each) if isinstance(each, np.ndarray) else each for each in arguments]
    check(device, *placed, faults)
    try:
        faults.check()
    except CorruptMessage:
        return False
    return True


def test_values_of_wgt(device: Any) -> None:
    tau = F32(0.3)
    for value in FLOATS:
        for word in (np.uint32(8), np.uint32(9)):
            one = np.array([word]), np.array([value])
            expected = bool(sparse.check_values(*one, tau))
            assert accepts(device, wire.check_wgt, *one, tau) == expected, (value, word)
    for size in (0, 1, 33, 9000):
        words, values = np.arange(size, dtype=np.uint32) * 2, np.full(size, 0.5, F32)
        assert accepts(device, wire.check_wgt, words, values, tau)
        if size:
            values[-1] = 0.25
            assert not accepts(device, wire.check_wgt, words, values, tau)


@in_turn("at", [0, 31, 4095, 4096, 8999])
def test_one_that_is_wrong_among_many_is_found(device: Any, at: int) -> None:
    levels, floats, halves, symbols = (np.ones(9000, kind) for kind in ("u1", "f4", "u2", "u1"))
    exponents = np.zeros(5, np.int8)
    assert accepts(device, wire.check_levels, levels)
    assert accepts(device, wire.check_floats, floats)
    assert accepts(device, wire.check_halves, "fp16", halves)
    assert accepts(device, wire.check_fp8, symbols, exponents)
    levels[at], floats[at], halves[at], symbols[at] = 0, np.nan, 0xFC00, 0xFF
    assert not accepts(device, wire.check_levels, levels)
    assert not accepts(device, wire.check_floats, floats)
    assert not accepts(device, wire.check_halves, "fp16", halves)
    assert accepts(device, wire.check_halves, "bf16", halves)
    assert not accepts(device, wire.check_fp8, symbols, exponents)


def test_every_float_and_every_exponent(device: Any) -> None:
    for value in FLOATS:
        assert accepts(device, wire.check_floats, np.array([value])) == np.isfinite(value)
    for symbol in range(256):
        one = np.array([symbol], np.uint8), np.zeros(1, np.int8)
        assert accepts(device, wire.check_fp8, *one) == (symbol & 0x7F != 0x7F)
    for exponent in range(-128, 128):
        one = np.array([exponent], np.int8)
        assert accepts(device, wire.check_fp8, np.zeros(1, np.uint8), one) == (-126 <= exponent <= 119)
        table = np.zeros((1, 2), np.uint16)
        expected = quantile.quantile_tables_valid(table, one)
        assert accepts(device, wire.check_quantile_tables, table.reshape(-1), one) == expected


def test_every_half(device: Any) -> None:
    for symbol in [*range(0, 0x10000, 0x111), 0x77FF, 0x7800, 0xF7FF, 0xF800, 0x7C00, 0x7BFF, 0x7F80, 0x7F7F]:
        one = np.array([symbol], np.uint16)
        assert accepts(device, wire.check_halves, "fp16", one) == bool(np.isfinite(one.view(np.float16))[0])
        brain = (one.astype(np.uint32) << 16).view(F32)
        assert accepts(device, wire.check_halves, "bf16", one) == bool(np.isfinite(brain)[0])
        table = np.array([[symbol, 0]], np.uint16)
        expected = quantile.quantile_tables_valid(table, np.zeros(1, np.int8))
        assert (
            accepts(device, wire.check_quantile_tables, table.reshape(-1), np.zeros(1, np.int8)) == expected
        )


@in_turn("bits", [1, 8, 16])
def test_tables_of_uniform_bins(device: Any, bits: int) -> None:
    for low in FLOATS:
        for step in FLOATS:
            one = np.array([low]), np.array([step])
            expected = linear.linear_tables_valid(bits, *one)
            assert accepts(device, wire.check_linear_tables, bits, *one) == expected, (low, step)


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("wire_values")
