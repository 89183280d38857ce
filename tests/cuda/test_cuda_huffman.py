"""Huffman coding on the emulated device against the CPU's, byte for byte."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import huffman as cpu
from taugrad.compressors.ops.cpu.bitpack import symbol_type
from taugrad.compressors.ops.cuda import huffman
from taugrad.compressors.ops.cuda.copying import copy_bytes
from taugrad.compressors.ops.cuda.faults import Faults

CANARY = 0xA5
SIZES = (1, 31, 32, 33, 1000, 4095, 4096, 4097, 20_001)


def normal_symbols(bits: int, k: int, width: float = 0.1) -> Any:
    """As of a quantizer: a bell in the middle."""
    top = (1 << bits) - 1
    values = np.random.default_rng(k).normal(top / 2, max(1, width * top), k)
    return np.clip(np.rint(values), 0, top).astype(symbol_type(bits))


def fibonacci_symbols(bits: int) -> Any:
    """Counts that make codes as long as they may be."""
    counts = [1, 1]
    while sum(counts) < 60_000:
        counts.append(counts[-1] + counts[-2])
    symbols = np.repeat(np.arange(len(counts)), counts).astype(symbol_type(bits))
    return np.random.default_rng(1).permutation(symbols)


def section_of(symbols: Any, bits: int) -> Any:
    plan = cpu.plan(symbols, bits)
    out = np.empty(plan.size, np.uint8)
    cpu.encode(plan, symbols, out)
    return out


def written(device: Any, symbols: Any, bits: int, offset: int) -> Any:
    """The section, written between bytes that must be left alone."""
    plan = huffman.plan(device, device.place(symbols), bits)
    fenced = device.place(np.full(plan.size + 32, CANARY, np.uint8))
    huffman.encode(device, plan, fenced[offset : offset + plan.size])
    found = device.fetch(fenced)
    assert (np.delete(found, slice(offset, offset + plan.size)) == CANARY).all()
    return found[offset : offset + plan.size]


def read(device: Any, section: Any, bits: int, k: int, offset: int = 0) -> Any:
    body = np.full(offset + section.size + 3, 0xFF, np.uint8)
    body[offset : offset + section.size] = section
    faults = Faults(device)
    placed = device.place(body)[offset : offset + section.size]
    symbols = huffman.decode(device, placed, bits, k, faults)
    faults.check()
    return device.fetch(symbols)


def check(device: Any, symbols: Any, bits: int, offset: int = 16) -> None:
    expected = section_of(symbols, bits)
    np.testing.assert_array_equal(written(device, symbols, bits, offset), expected)
    found = read(device, expected, bits, symbols.size, offset)
    assert found.dtype == symbols.dtype
    np.testing.assert_array_equal(found, symbols)


@in_turn("bits", range(1, 17))
def test_bytes_and_symbols_are_those_of_the_cpu(device: Any, bits: int) -> None:
    for number, k in enumerate(SIZES):
        check(device, normal_symbols(bits, k), bits, 16 + (number + bits) % 4)


@in_turn("bits", [5, 8, 12, 16])
def test_codes_of_the_greatest_length(device: Any, bits: int) -> None:
    symbols = fibonacci_symbols(bits)
    check(device, symbols, bits, 19)
    check(device, np.sort(symbols), bits, 17)  # streams of long codes alone, and of short ones


@in_turn("size", [2, 3, 5, 7, 8, 9, 64, 100, 128])
def test_codes_of_one_length_or_of_two_that_hardly_meet(device: Any, size: int) -> None:
    """A decoder that begins at a wrong bit may never find the right codes."""
    for k in (4096, 9000):
        check(device, (np.arange(k) * 7 % size).astype(np.uint8), 7, 18)
        check(device, np.sort(np.arange(k) % size).astype(np.uint16), 9, 18)


@in_turn("bits", [3, 13, 14, 16])
def test_histograms_in_shared_memory_and_without(device: Any, bits: int) -> None:
    symbols = normal_symbols(bits, 70_001, 0.2)
    np.testing.assert_array_equal(
        huffman.histogram(device, device.place(symbols), bits), cpu.histogram(symbols, bits)
    )


@in_turn("bits", [1, 8, 11, 16])
def test_one_symbol_alone_and_none(device: Any, bits: int) -> None:
    symbols = np.full(5000, (1 << bits) - 1, symbol_type(bits))
    check(device, symbols, bits, 17)
    check(device, symbols[:1], bits, 17)
    assert written(device, symbols[:0], bits, 16).size == 0
    assert read(device, symbols[:0].view(np.uint8), bits, 0).size == 0


def test_wrong_arguments_are_refused(device: Any) -> None:
    with pytest.raises(ValueError, match="more bits"):
        huffman.plan(device, device.place(np.full(9, 32, np.uint8)), 5)
    with pytest.raises(ValueError, match="uint16"):
        huffman.plan(device, device.zeros(9, np.uint8), 9)
    plan = huffman.plan(device, device.place(normal_symbols(5, 100)), 5)
    with pytest.raises(ValueError, match="takes"):
        huffman.encode(device, plan, device.empty(plan.size - 1, np.uint8))


def test_other_symbols_than_those_planned_leave_the_bytes_around_alone(device: Any) -> None:
    symbols = device.place(normal_symbols(5, 5000))
    plan = huffman.plan(device, symbols, 5)
    symbols[:] = 31
    fenced = device.place(np.full(plan.size + 32, CANARY, np.uint8))
    huffman.encode(device, plan, fenced[16 : 16 + plan.size])
    found = device.fetch(fenced)
    assert (np.delete(found, slice(16, 16 + plan.size)) == CANARY).all()


def both_read(device: Any, section: Any, bits: int, k: int) -> None:
    """The CPU and the device refuse these bytes alike, or read the same."""
    try:
        expected = cpu.decode(section, bits, k)
    except CorruptMessage:
        with pytest.raises(CorruptMessage):
            read(device, section, bits, k)
        return
    np.testing.assert_array_equal(read(device, section, bits, k), expected)


@in_turn("bits", [2, 8, 10])
def test_corrupt_sections_are_read_as_on_the_cpu(device: Any, bits: int) -> None:
    rng = np.random.default_rng(bits)
    section = section_of(normal_symbols(bits, 5000), bits)
    for trial in range(120):
        damaged = section.copy()
        where = rng.integers(0, damaged.size if trial % 2 else 12, rng.integers(1, 4))
        damaged[where] ^= (1 << rng.integers(0, 8, where.size)).astype(np.uint8)
        both_read(device, damaged, bits, 5000)
    for size in (*range(0, 12), section.size - 1):
        both_read(device, section[:size], bits, 5000)
    for k in (0, 1, 4096, 4999, 5001, 9000):
        both_read(device, section, bits, k)


@in_turn("length", [0, 1, 9215, 9216, 9217, 65_535])
def test_streams_of_impossible_lengths_are_read_as_on_the_cpu(device: Any, length: int) -> None:
    symbols = normal_symbols(8, 4096)
    plan = cpu.plan(symbols, 8)
    section = section_of(symbols, 8)[: plan.codebook.size + 2]
    section[-2:].view("<u2")[:] = length
    for filler in (0, 0xFF):
        longer = np.concatenate((section, np.full(length, filler, np.uint8)))
        both_read(device, longer, 8, 4096)


def test_random_bytes_are_read_as_on_the_cpu(device: Any) -> None:
    rng = np.random.default_rng(2)
    for trial in range(200):
        body = rng.integers(0, 256, rng.integers(0, 40)).astype(np.uint8)
        both_read(device, body, 1 + trial % 3, int(rng.integers(0, 60)))


def test_set_bits_behind_the_last_code_are_refused(device: Any) -> None:
    symbols = np.array([0, 1, 1, 0, 1], np.uint8)
    section = section_of(symbols, 1)
    section[-1] |= 0x80
    both_read(device, section, 1, 5)
    with pytest.raises(CorruptMessage, match="does not end"):
        read(device, section, 1, 5)


@in_turn("size", [0, 1, 3, 4, 100, 8191, 8192, 8193, 20_000])
def test_copies_between_any_addresses(device: Any, size: int) -> None:
    source = np.random.default_rng(size).integers(0, 256, size + 4).astype(np.uint8)
    for skew in range(4):
        for to in range(4):
            fenced = device.place(np.full(size + 16, CANARY, np.uint8))
            moved = device.place(source)[skew : skew + size]
            copy_bytes(device, moved, fenced[4 + to : 4 + to + size])
            found = device.fetch(fenced)
            np.testing.assert_array_equal(found[4 + to : 4 + to + size], source[skew : skew + size])
            assert (np.delete(found, slice(4 + to, 4 + to + size)) == CANARY).all()
    with pytest.raises(ValueError, match="do not fill"):
        copy_bytes(device, moved, device.empty(size + 1, np.uint8))


@in_turn("source", ["huffman", "copying"])
def test_it_compiles_for_every_architecture(compiles: Callable[[str], None], source: str) -> None:
    compiles(source)
