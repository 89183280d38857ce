"""Golomb-Rice coded positions, against the page's decoder and against entropy."""

import math

import numpy as np
import page_decoder
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import golomb_rice

Words = NDArray[np.uint32]
LAST_N = 2**31 - 1


def words_of(positions: list[int], minus: list[int] | None = None) -> Words:
    signs = np.zeros(len(positions), np.uint32)
    if minus is not None:
        signs[minus] = 1
    return np.array(positions, np.uint32) << np.uint32(1) | signs


def encode(words: Words, signed: bool, block_log2: int = 12) -> bytes:
    """The section, written between bytes that must be left alone, at an odd address."""
    planned = golomb_rice.plan(words, signed, block_log2)
    size = planned.size
    fenced = np.full(size + 18, 0xA5, np.uint8)
    golomb_rice.write(planned, fenced[9 : size + 9])
    assert (fenced[:9] == 0xA5).all()
    assert (fenced[size + 9 :] == 0xA5).all()
    return fenced[9 : size + 9].tobytes()


def decode(section: bytes, n: int, k: int, signed: bool) -> Words:
    words, used = golomb_rice.read(np.frombuffer(section, np.uint8), n, k, signed)
    if used < len(section):
        raise CorruptMessage("bytes follow the section")
    return words


def size_of(words: Words, signed: bool, block_log2: int = 12) -> int:
    """Bytes of the section, as they are planned."""
    return golomb_rice.plan(words, signed, block_log2).size


def check(words: Words, signed: bool, block_log2: int = 12) -> bytes:
    """The section, which both readers, ours and the page's, find the words in."""
    section, expected = (
        encode(words, signed, block_log2=block_log2),
        words if signed else words & ~np.uint32(1),
    )
    n = int(words[-1] >> 1) + 1 if words.size else 0
    np.testing.assert_array_equal(decode(section, n, words.size, signed), expected)
    body = page_decoder.Body(section)
    positions, signs = page_decoder.golomb_rice(body, "bgt" if signed else "f32", [n], words.size)
    assert not body.data
    assert section[:1] == bytes([block_log2][: words.size])
    assert (
        np.array(positions, np.uint32) << np.uint32(1) | np.array(signs, np.uint32)
    ).tolist() == expected.tolist()
    return section


@st.composite
def sorted_words(draw: st.DrawFn) -> tuple[int, Words]:
    """Any n, and ascending words below it, with runs, gaps of all magnitudes and both signs."""
    gap = st.one_of(st.just(0), st.integers(0, 20), st.integers(0, 5000), st.integers(0, 2**27))
    gaps = draw(st.lists(gap, max_size=90))
    repeated = draw(st.integers(1, 4))
    positions = np.cumsum(np.array(gaps * repeated, np.int64) + 1) - 1
    positions = positions[positions < LAST_N]
    least = int(positions[-1]) + 1 if positions.size else 0
    n = draw(st.one_of(st.just(least), st.integers(least, LAST_N), st.just(LAST_N)))
    signs = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 2, positions.size)
    return n, (positions << 1 | signs).astype(np.uint32)


def random_words(k: int, p: float, seed: int = 0) -> Words:
    """Words of independent positions, each sent with probability p."""
    rng = np.random.default_rng(seed)
    positions = np.cumsum(rng.geometric(p, k)) - 1
    return (positions << 1 | rng.integers(0, 2, k)).astype(np.uint32)


@settings(max_examples=150, deadline=None)
@given(drawn=sorted_words(), signed=st.booleans(), block_log2=st.sampled_from([4, 5, 7, 12, 14]))
def test_any_words_come_back(drawn: tuple[int, Words], signed: bool, block_log2: int) -> None:
    n, words = drawn
    section = check(words, signed, block_log2)
    assert decode(section, n, words.size, signed).size == words.size


@in_turn("signed", [True, False])
@in_turn("k", [4096, 4097, 9001])
@in_turn("p", [0.9, 0.0001])
def test_whole_blocks_and_tails(k: int, p: float, signed: bool) -> None:
    check(random_words(k, p, seed=k), signed)


def test_golden_blocks() -> None:
    # 17 positions in a row from 0 on, all plus, in blocks of 16: gaps are 0 and b is 0. The first block is
    # 16 signs and 16 ones; the second, whose last position is 16, one of each, in a byte each.
    section = bytes([4]) + bytes([15, 0, 0, 0, 16, 0, 0, 0]) + bytes([4, 0, 2, 0])
    section += bytes([0, 0, 0xFF, 0xFF]) + bytes([0, 1])
    assert encode(words_of(list(range(17))), True, block_log2=4) == section


# --- how good the code is ----------------------------------------------------------------------


@in_turn("p", [0.1, 0.01, 0.001, 0.0001])
def test_size_is_within_1_5_percent_of_the_entropy(p: float) -> None:
    words = random_words(200_000, p)
    sent = words.size / (int(words[-1] >> 1) + 1)
    entropy = -(sent * math.log2(sent) + (1 - sent) * math.log2(1 - sent))
    bits = words.size * (entropy / sent + 1)
    assert bits < 8 * size_of(words, True) < 1.015 * bits


@settings(max_examples=300, deadline=None)
@given(count=st.integers(1, 2**14), data=st.data())
def test_parameter_is_the_pages(count: int, data: st.DataObject) -> None:
    span = data.draw(st.one_of(st.integers(count, 4 * count), st.integers(count, LAST_N)))
    assert golomb_rice.parameter(span, count) == page_decoder.parameter(span, count)


@in_turn("block_log2", [4, 14])
def test_no_block_passes_what_its_size_field_holds(block_log2: int) -> None:
    """The worst gaps for a mean: all in one, so that the quotients' sum is largest."""
    count = 2**block_log2
    for b in range(int(31 - block_log2)):
        span = count * int(golomb_rice.LIMITS[b]) >> 16
        words = words_of([*range(count - 1), min(span, LAST_N) - 1])
        assert size_of(words, True, block_log2=block_log2) - 7 < 2**16


# --- callers -----------------------------------------------------------------------------------


@in_turn("signed", [True, False])
def test_many_blocks_come_back(signed: bool) -> None:
    words = random_words(16 * 100 + 5, 0.02)
    section = encode(words, signed, block_log2=4)
    n = int(words[-1] >> 1) + 1
    assert size_of(words, signed, 4) == len(section)
    expected = words if signed else words & ~np.uint32(1)
    np.testing.assert_array_equal(decode(section, n, words.size, signed), expected)
    with pytest.raises(CorruptMessage):
        decode(section[:-1] + b"\0", n, words.size, signed)


def test_bytes_behind_the_section_are_not_read() -> None:
    words = random_words(5000, 0.01)
    section = encode(words, True)
    body = np.frombuffer(b"x" + section + b"values", np.uint8)[1:]
    found, used = golomb_rice.read(body, LAST_N, words.size, True)
    assert used == len(section)
    np.testing.assert_array_equal(found, words)
    for cut in (0, 1, 7, 12, 13, len(section) - 1):
        with pytest.raises(CorruptMessage):
            golomb_rice.read(body[:cut], LAST_N, words.size, True)


@in_turn("positions", [[5, 5], [5, 4], [2, 1, 9], [*range(16), 15], [*range(16), 7, 99]])
def test_positions_that_do_not_ascend_are_refused(positions: list[int]) -> None:
    words = words_of(positions)
    with pytest.raises(ValueError, match="ascend"):
        size_of(words, True, block_log2=4)


def test_the_plan_has_the_blocks_of_the_shortest_section() -> None:
    """Few positions of very different densities in short blocks, many of one density in long ones."""
    rng = np.random.default_rng(0)
    for gaps in (rng.geometric(0.01, 3000), np.repeat([1, 1000, 3, 90], 100), np.ones(70_000, np.int64)):
        words = words_of((np.cumsum(gaps) - 1).tolist())
        tried = golomb_rice.BLOCK_LOG2S if words.size <= golomb_rice.FEW else golomb_rice.BLOCK_LOG2S_OF_MANY
        assert golomb_rice.plan(words, True).size == min(size_of(words, True, log2) for log2 in tried)


# --- bytes from anywhere -----------------------------------------------------------------------


def refused_or_canonical(section: bytes, n: int, k: int, signed: bool) -> bool:
    """Decodes bytes; what is not refused must be words that encode to the same bytes."""
    try:
        words = decode(section, n, k, signed)
    except CorruptMessage:
        return True
    positions = (words >> 1).astype(np.int64)
    assert words.size == k
    assert (np.diff(positions) > 0).all()
    assert k == 0 or positions[-1] < n
    assert encode(words, signed, block_log2=section[0]) == section
    return False


@in_turn("signed", [True, False])
def test_every_bit_of_a_section_flipped(signed: bool) -> None:
    words = random_words(37, 0.05)
    section = encode(words, signed, block_log2=4)
    n = int(words[-1] >> 1) + 30
    accepted = 0
    for bit in range(8 * len(section)):
        changed = bytearray(section)
        changed[bit >> 3] ^= 1 << (bit & 7)
        accepted += not refused_or_canonical(bytes(changed), n, words.size, signed)
    # A sign that is flipped is another valid section; anything else breaks a sum or a length.
    assert accepted == (37 if signed else 0)


def section(last: int, *coded: int, size: int | None = None, block_log2: int = 12) -> bytes:
    """A section of one block, for four words unless its bytes say otherwise."""
    stated = len(coded) if size is None else size
    return bytes([block_log2]) + last.to_bytes(4, "little") + stated.to_bytes(2, "little") + bytes(coded)


@in_turn(
    "bad",
    [
        section(11, 0b01100110, 0b1010011, block_log2=3),
        section(11, 0b01100110, 0b1010011, block_log2=15),
        section(12, 0b01100110, 0b1010011),  # past n; and not where the gaps lead
        section(10, 0b01100110, 0b1010011),  # not where the gaps lead; b is the same
        section(2, 0b01100110, 0b1010011),  # four positions up to 2
        section(11, 0b01100110, 0b1010011, size=1),
        section(11, 0b01100110, 0b1010011, size=3),
        section(11, 0b01100110, 0b1010011, 0),  # a byte of zeros behind the last one
        section(11, 0b01100110, 0b1010011, 1),  # a fifth one
        section(11, 0b01100110, 0b1010001),  # three ones
        section(11, 0b01100110, 0b11010011),  # five ones
        section(11, 0b01100110, 0b0101011),  # a zero fewer among the quotients
        section(11, 0b01100110, 0),  # nothing but zeros
        section(11, 0b01100100, 0b1010011),  # another remainder
        section(11, 0b01100110),
    ],
)
def test_corrupt_blocks(bad: bytes) -> None:
    assert decode(section(11, 0b01100110, 0b1010011), 12, 4, True).size == 4
    with pytest.raises(CorruptMessage):
        decode(bad, 12, 4, True)


def test_blocks_whose_last_positions_do_not_ascend_are_refused() -> None:
    words = words_of([*range(16), 40])
    good = encode(words, True, block_log2=4)
    for last in (15, 14, 0, 2**32 - 1):
        with pytest.raises(CorruptMessage, match="table"):
            decode(good[:5] + last.to_bytes(4, "little") + good[9:], LAST_N, 17, True)


def test_a_long_run_of_zeros_is_refused() -> None:
    zeros = [0] * 60_000
    with pytest.raises(CorruptMessage):
        decode(section(LAST_N - 1, *zeros, 1), LAST_N, 1, True)


@in_turn("k", [5, 4096, 2**20, 2**40])
def test_more_words_than_bytes_can_hold_are_refused_before_memory_is_asked_for(k: int) -> None:
    with pytest.raises(CorruptMessage):
        decode(section(LAST_N - 1, 0b01100110, 0b1010011), LAST_N, k, True)
