"""Golomb-Rice coded positions, against a slow transcription of the format and against entropy."""

import math
from decimal import Decimal, localcontext

import numpy as np
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


# --- the format, transcribed -------------------------------------------------------------------


def kiely(p: float) -> int:
    """The best parameter for gaps that end at each position with probability p."""
    phi = (1 + math.sqrt(5)) / 2
    return 0 if p >= 1 else max(0, math.ceil(math.log2(math.log(phi - 1) / math.log1p(-p))))


def packed(bits: list[int]) -> bytes:
    padded = bits + [0] * (-len(bits) % 8)
    return bytes(sum(bit << j for j, bit in enumerate(padded[i : i + 8])) for i in range(0, len(padded), 8))


def transcription(words: list[int], signed: bool, block_log2: int) -> bytes:
    lasts, sizes, blocks = b"", b"", b""
    base = -1
    for start in range(0, len(words), 2**block_log2):
        block = words[start : start + 2**block_log2]
        last = block[-1] >> 1
        b = kiely(len(block) / (last - base))
        fields, quotients = [], []
        for word in block:
            gap = (word >> 1) - base - 1
            base = word >> 1
            fields += [word & 1] * signed + [gap >> j & 1 for j in range(b)]
            quotients += [0] * (gap >> b) + [1]
        coded = packed(fields) + packed(quotients)
        lasts += last.to_bytes(4, "little")
        sizes += len(coded).to_bytes(2, "little")
        blocks += coded
    return bytes([block_log2]) + lasts + sizes + blocks if words else b""


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


@settings(max_examples=200, deadline=None)
@given(drawn=sorted_words(), signed=st.booleans(), block_log2=st.sampled_from([4, 5, 7, 12, 14]))
def test_any_words_come_back_and_the_bytes_are_those_of_the_transcription(
    drawn: tuple[int, Words], signed: bool, block_log2: int
) -> None:
    n, words = drawn
    section = encode(words, signed, block_log2=block_log2)
    assert section == transcription(words.tolist(), signed, block_log2)
    found = decode(section, n, words.size, signed)
    np.testing.assert_array_equal(found, words if signed else words & ~np.uint32(1))


def random_words(k: int, p: float, seed: int = 0) -> Words:
    """Words of independent positions, each sent with probability p."""
    rng = np.random.default_rng(seed)
    positions = np.cumsum(rng.geometric(p, k)) - 1
    return (positions << 1 | rng.integers(0, 2, k)).astype(np.uint32)


@in_turn("signed", [True, False])
@in_turn("k", [1, 3, 4, 4095, 4096, 4097, 8192, 20_001])
@in_turn("p", [0.9, 0.1, 0.003, 0.0001])
def test_whole_blocks_and_tails(k: int, p: float, signed: bool) -> None:
    words = random_words(k, p, seed=k)
    section = encode(words, signed)
    assert section == transcription(words.tolist(), signed, 12)
    expected = words if signed else words & ~np.uint32(1)
    np.testing.assert_array_equal(decode(section, int(words[-1] >> 1) + 1, k, signed), expected)


def test_golden_bytes() -> None:
    # The 4 positions span 12, a mean of 3: above 2.618, the limit of b = 0, hence b = 1. Gaps are 1, 0, 5, 2.
    # Fields, each the sign, then the remainder: + 1, - 0, + 1, - 0, bits 01 10 01 10 from the lowest on.
    # Quotients 0, 0, 2, 1: bits 1, 1, 001, 01 from the lowest on.
    words = words_of([1, 2, 8, 11], minus=[1, 3])
    section = bytes([12]) + bytes([11, 0, 0, 0]) + bytes([2, 0]) + bytes([0b01100110, 0b1010011])
    assert encode(words, True) == section
    # Without signs the fields are the remainders 1, 0, 1, 0.
    unsigned = section[:7] + bytes([0b0101, 0b1010011])
    assert encode(words, False) == unsigned
    assert decode(unsigned, 12, 4, False).tolist() == [2, 4, 16, 22]


def test_golden_blocks() -> None:
    # 17 positions in a row from 0 on, all plus, in blocks of 16: gaps are 0 and b is 0. The first block is
    # 16 signs and 16 ones; the second, whose last position is 16, one of each, in a byte each.
    section = bytes([4]) + bytes([15, 0, 0, 0, 16, 0, 0, 0]) + bytes([4, 0, 2, 0])
    section += bytes([0, 0, 0xFF, 0xFF]) + bytes([0, 1])
    assert encode(words_of(list(range(17))), True, block_log2=4) == section


def test_golden_last_position() -> None:
    # One gap of 2^31 - 2; b = 30, the remainder is 2^30 - 2 behind the sign, the quotient 1.
    section = bytes([12]) + bytes([0xFE, 0xFF, 0xFF, 0x7F]) + bytes([5, 0])
    section += (((2**30 - 2) << 1) | 1).to_bytes(4, "little") + bytes([0b10])
    words = words_of([LAST_N - 1], minus=[0])
    assert encode(words, True) == section
    assert decode(section, LAST_N, 1, True).tolist() == words.tolist()


def test_no_words_make_no_bytes() -> None:
    empty = np.empty(0, np.uint32)
    assert encode(empty, True) == b""
    assert decode(b"", 0, 0, True).size == 0
    assert golomb_rice.read(np.ones(3, np.uint8), 0, 0, True)[1] == 0


# --- how good the code is ----------------------------------------------------------------------


@in_turn("p", [0.1, 0.01, 0.001, 0.0001])
def test_size_is_within_1_5_percent_of_the_entropy(p: float) -> None:
    words = random_words(200_000, p)
    sent = words.size / (int(words[-1] >> 1) + 1)
    entropy = -(sent * math.log2(sent) + (1 - sent) * math.log2(1 - sent))
    bits = words.size * (entropy / sent + 1)
    assert bits < 8 * size_of(words, True) < 1.015 * bits


def test_limits_are_those_of_the_formula() -> None:
    with localcontext() as context:
        context.prec = 80
        root = (Decimal(5).sqrt() - 1) / 2
        for limit in golomb_rice.LIMITS.tolist():
            assert limit == int(2**16 / (1 - root))
            root = root.sqrt()


@settings(max_examples=300, deadline=None)
@given(count=st.integers(1, 2**14), data=st.data())
def test_parameter_is_kielys(count: int, data: st.DataObject) -> None:
    span = data.draw(st.one_of(st.integers(count, 4 * count), st.integers(count, LAST_N)))
    assert golomb_rice.parameter(span, count) == kiely(count / span)


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


@settings(max_examples=150, deadline=None)
@given(drawn=sorted_words(), signed=st.booleans(), data=st.data())
def test_changed_sections_are_refused_or_canonical(
    drawn: tuple[int, Words], signed: bool, data: st.DataObject
) -> None:
    n, words = drawn
    section = bytearray(encode(words, signed, block_log2=data.draw(st.sampled_from([4, 6, 12]))))
    if not section:
        return
    for bit in data.draw(st.lists(st.integers(0, 8 * len(section) - 1), min_size=1, max_size=4)):
        section[bit >> 3] ^= 1 << (bit & 7)
    refused_or_canonical(bytes(section), n, words.size, signed)
    k = data.draw(st.integers(0, 2 * words.size))
    refused_or_canonical(bytes(section), n, k, signed)


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


def test_sections_cut_or_extended_are_refused() -> None:
    words = random_words(37, 0.05)
    section = encode(words, True, block_log2=4)
    for end in range(len(section)):
        with pytest.raises(CorruptMessage):
            decode(section[:end], LAST_N, words.size, True)
    for extra in (b"\0", b"\1", b"\0" * 9):
        with pytest.raises(CorruptMessage):
            decode(section + extra, LAST_N, words.size, True)


@settings(max_examples=200, deadline=None)
@given(
    rest=st.binary(max_size=80), block_log2=st.integers(4, 14), k=st.integers(0, 300), signed=st.booleans()
)
def test_any_bytes_are_refused_or_canonical(rest: bytes, block_log2: int, k: int, signed: bool) -> None:
    refused_or_canonical(bytes([block_log2]) + rest, LAST_N, k, signed)


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
