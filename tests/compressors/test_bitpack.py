"""Bit packing, by hand, and what it refuses; that any symbols come back is in test_codecs.py."""

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu.bitpack import pack, packed_bytes, symbol_type, unpack


def packed(symbols: np.ndarray, bits: int, threads: int = 1) -> np.ndarray:
    """What `pack` writes between bytes that it must leave alone, over bytes it must not trust."""
    size = packed_bytes(symbols.size, bits)
    fenced = np.full(size + 32, 0xA5, np.uint8)
    pack(symbols, bits, fenced[16 : 16 + size], threads)
    assert (fenced[:16] == 0xA5).all()
    assert (fenced[16 + size :] == 0xA5).all()
    return fenced[16 : 16 + size]


every_bits = in_turn("bits", range(1, 17))


def test_golden_bytes() -> None:
    # 5 = 101, 3 = 011, 6 = 110, each written from its lowest bit: 101 110 01|1 -> read from the right.
    assert packed(np.array([5, 3, 6], np.uint8), 3).tolist() == [0b10_011_101, 0b1]
    # 0x123 and 0xABC in 12 bits: the low byte first, then two half bytes, then the high byte.
    assert packed(np.array([0x123, 0xABC], np.uint16), 12).tolist() == [0x23, 0xC1, 0xAB]


@every_bits
def test_other_lengths_and_set_padding_are_refused(bits: int) -> None:
    body = packed(np.arange(21).astype(symbol_type(bits)) & symbol_type(bits)((1 << bits) - 1), bits)
    for wrong in (body[:-1], np.append(body, np.uint8(0))):
        with pytest.raises(CorruptMessage):
            unpack(wrong, bits, 21)
    for bit in range(21 * bits, 8 * body.size):
        flipped = body.copy()
        flipped[-1] ^= 1 << bit % 8
        with pytest.raises(CorruptMessage):
            unpack(flipped, bits, 21)


@in_turn("bits", [1, 7, 9, 15])
@in_turn("place", [0, 63, 64, 66])
def test_a_symbol_that_does_not_fit_is_refused(bits: int, place: int) -> None:
    symbols = np.zeros(67, symbol_type(bits))
    symbols[place] = 1 << bits
    with pytest.raises(ValueError, match="more than"):
        packed(symbols, bits, 2)


def test_wrong_arguments_are_refused() -> None:
    symbols, out = np.zeros(8, np.uint8), np.zeros(8, np.uint8)
    with pytest.raises(ValueError, match="1 to 16"):
        pack(symbols, 0, out)
    with pytest.raises(ValueError, match="1 to 16"):
        unpack(out, 17, 4)
    with pytest.raises(ValueError, match="uint16"):
        pack(symbols, 9, out)
    with pytest.raises(ValueError, match="contiguous"):
        pack(np.zeros(16, np.uint8)[::2], 8, out)
    with pytest.raises(ValueError, match="do not make"):
        pack(symbols, 7, out)
