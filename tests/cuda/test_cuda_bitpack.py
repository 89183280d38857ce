"""Bit packing on the emulated device against the CPU's, byte for byte."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import bitpack as cpu
from taugrad.compressors.ops.cuda import bitpack
from taugrad.compressors.ops.cuda.faults import Faults

SIZES = (0, 1, 31, 32, 33, 1000, 2047, 2048, 2049, 20_001)
every_bits = in_turn("bits", range(1, 17))


def packed(device: Any, symbols: Any, bits: int, offset: int) -> Any:
    """What `pack` writes at an offset between bytes that it must leave alone."""
    size = cpu.packed_bytes(symbols.size, bits)
    fenced = device.place(np.full(size + 32, 0xA5, np.uint8))
    faults = Faults(device)
    bitpack.pack(device, device.place(symbols), bits, fenced[offset : offset + size], faults)
    faults.check()
    found = device.fetch(fenced)
    assert (np.delete(found, slice(offset, offset + size)) == 0xA5).all()
    return found[offset : offset + size]


@every_bits
def test_bytes_and_symbols_are_those_of_the_cpu(device: Any, bits: int) -> None:
    rng = np.random.default_rng(bits)
    for number, k in enumerate(SIZES):
        symbols = rng.integers(0, 1 << bits, k).astype(cpu.symbol_type(bits))
        expected = np.empty(cpu.packed_bytes(k, bits), np.uint8)
        cpu.pack(symbols, bits, expected)
        offset = 16 + number % 4
        np.testing.assert_array_equal(packed(device, symbols, bits, offset), expected)
        body = device.place(np.concatenate((np.full(offset, 0xFF, np.uint8), expected, [0xFF])).astype("u1"))
        faults = Faults(device)
        found = bitpack.unpack(device, body[offset:-1], bits, k, faults)
        faults.check()
        assert found.dtype == symbols.dtype
        np.testing.assert_array_equal(device.fetch(found), symbols)


@every_bits
def test_symbols_of_too_many_bits_are_refused(device: Any, bits: int) -> None:
    symbols = np.zeros(2500, cpu.symbol_type(bits))
    if bits in {8, 16}:
        return
    symbols[2400] = 1 << bits
    with pytest.raises(ValueError, match="more bits"):
        packed(device, symbols, bits, 0)


def test_symbols_that_are_no_multiple_of_a_load_from_the_beginning(device: Any) -> None:
    symbols = np.arange(3000, dtype=np.uint16) & np.uint16(0xFFF)
    moved = device.place(np.concatenate(([0], symbols)).astype(np.uint16))[1:]
    out, faults = device.empty(4500, np.uint8), Faults(device)
    bitpack.pack(device, moved, 12, out, faults)
    expected = np.empty(4500, np.uint8)
    cpu.pack(symbols, 12, expected)
    np.testing.assert_array_equal(device.fetch(out), expected)


@in_turn("bits", [b for b in range(1, 17) if b != 8 and b != 16])  # noqa: PLR1714
def test_padding_must_be_zero(device: Any, bits: int) -> None:
    k = 2048 + 3
    spare = -k * bits % 8
    for bit in range(8 - spare, 8):
        body = np.zeros(cpu.packed_bytes(k, bits), np.uint8)
        body[-1] = 1 << bit
        with pytest.raises(CorruptMessage):
            cpu.unpack(body, bits, k)
        faults = Faults(device)
        bitpack.unpack(device, device.place(body), bits, k, faults)
        with pytest.raises(CorruptMessage, match="after the last"):
            faults.check()


def test_arrays_of_another_size_or_type_are_refused(device: Any) -> None:
    faults = Faults(device)
    with pytest.raises(CorruptMessage, match="do not hold"):
        bitpack.unpack(device, device.zeros(2, np.uint8), 3, 6, faults)
    with pytest.raises(ValueError, match="do not make"):
        bitpack.pack(device, device.zeros(6, np.uint8), 3, device.empty(2, np.uint8), faults)
    with pytest.raises(ValueError, match="uint16"):
        bitpack.pack(device, device.zeros(6, np.uint8), 12, device.empty(9, np.uint8), faults)


def test_it_compiles_for_every_architecture(compiles: Callable[[str], None]) -> None:
    compiles("bitpack")
