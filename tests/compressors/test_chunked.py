"""The packing of chunks' indices, by hand, by transcription, and whatever bytes are read."""

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.wire.positions import index_bytes, read_indices, write_indices
from taugrad.compressors.wire.update import Chunks

CANARY = 0xA5


@in_turn(("chunk", "keep"), [(0, 0), (1, 1), (3, 1), (-4, 1), (100, 1), (1 << 17, 1), (8, 9), (8, -1)])
def test_sizes_out_of_range_are_refused(chunk: int, keep: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        Chunks(chunk, keep).count(10)


def packed(positions: list[int], chunk: int) -> list[int]:
    """What `write_indices` writes for positions, between bytes that it must leave alone."""
    whole = np.full(index_bytes(len(positions), chunk) + 14, CANARY, np.uint8)
    out = whole[7:-7]
    words = np.array(positions, np.uint32) << np.uint32(1) | np.uint32(1)
    write_indices(words, np.array([0]), np.array([words.size]), chunk, out)
    assert set(whole[[*range(7), *range(-7, 0)]].tolist()) == {CANARY}
    return out.tolist()


def read(body: list[int], n: int, chunk: int, keep: int) -> list[int]:
    words = read_indices(np.array(body, np.uint8), np.array([0]), np.array([n]), chunk, keep)
    assert words.dtype == np.uint32
    assert not (words & 1).any()
    return (words >> 1).tolist()  # type: ignore[no-any-return]


GOLDEN = [
    # Twelve bits each: 0x123 and 0xABC of the first chunk, 0x004 and 0x005 of the second.
    # Lowest first: 23, then C and 1, then AB; 04, then 5 and 0, then 00.
    ([0x123, 0xABC, 4096 + 4, 4096 + 5], 4096 + 6, 4096, 2, [0x23, 0xC1, 0xAB, 0x04, 0x50, 0x00]),
    ([0x123], 4096, 4096, 1, [0x23, 0x01]),
    # One bit each, of chunks of two: 1 0 0 1 | 1 0 0 0, the last chunk having one element only.
    ([1, 2, 4, 7, 9, 10, 12, 14], 15, 2, 1, [0b0001_1001]),
    # Three bits each: 1, 6 | 0, 7 | 0, 1, the last chunk's only two. As one number, the first index
    # lowest: 001 000 111 000 110 001. The upper six bits of the third byte are padding.
    ([1, 6, 8, 15, 16, 17], 18, 8, 2, [0b00_110_001, 0b1_000_111_0, 0b00]),
    # Sixteen bits: two bytes each.
    ([0x1234, 65536 + 0xFEDC], 131072, 65536, 1, [0x34, 0x12, 0xDC, 0xFE]),
    ([], 0, 8, 2, []),
    ([], 100, 8, 0, []),
]


@in_turn(("positions", "n", "chunk", "keep", "body"), GOLDEN)
def test_indices_are_packed_as_written_out_by_hand(
    positions: list[int], n: int, chunk: int, keep: int, body: list[int]
) -> None:
    assert packed(positions, chunk) == body
    assert read(body, n, chunk, keep) == positions


def transcription(positions: list[int], chunk: int) -> list[int]:
    """The packing with one large integer for the whole stream."""
    bits, stream = chunk.bit_length() - 1, 0
    for i, position in enumerate(positions):
        stream |= position % chunk << i * bits
    return list(stream.to_bytes((len(positions) * bits + 7) // 8, "little"))


@in_turn(
    ("positions", "n", "chunk", "keep"),
    [
        ([3, 3], 8, 8, 2),  # twice the same
        ([5, 3], 8, 8, 2),  # descending
        ([0, 1, 2, 0], 16, 8, 2),  # the second chunk descends
        ([0, 5], 12, 8, 1),  # beyond the last, shorter chunk
        ([0, 4], 12, 8, 1),
        ([1], 1, 2, 1),
    ],
)
def test_indices_out_of_order_or_range_are_refused(
    positions: list[int], n: int, chunk: int, keep: int
) -> None:
    with pytest.raises(CorruptMessage, match="ascend"):
        read(transcription(positions, chunk), n, chunk, keep)


def test_padding_and_length_are_checked() -> None:
    body = packed([1, 6], 8)
    assert body == [0b00_110_001]
    for bit in (0x40, 0x80):
        with pytest.raises(CorruptMessage, match="bits after"):
            read([body[0] | bit], 8, 8, 2)


def test_parameters_side_by_side_share_one_run_of_bits() -> None:
    """Chunks of 8 in parameters of 8, 5 and 9 elements, the second of which sends nothing."""
    positions, firsts, counts = [1, 6, 13, 20, 21], np.array([0, 8, 13]), np.array([2, 0, 3])
    body = np.zeros(index_bytes(5, 8), np.uint8)
    write_indices(np.array(positions, np.uint32) << np.uint32(1), firsts, counts, 8, body)
    assert body.tolist() == transcription([1, 6, 0, 7, 0], 8)
    sent = counts > 0
    found = read_indices(body, firsts[sent], np.array([8, 5, 9])[sent], 8, 2)
    assert (found >> 1).tolist() == positions
