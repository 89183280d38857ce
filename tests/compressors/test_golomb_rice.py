"""Golomb-Rice coded positions, against the page's decoder and against entropy."""

import math

import numpy as np
import page_decoder
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import fenced, words_of
from numpy.typing import NDArray

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import golomb_rice

Words = NDArray[np.uint32]
LAST_N = 2**31 - 1


def encode(words: Words, signed: bool, block_log2: int = 12) -> bytes:
    return fenced(*golomb_rice.in_blocks(words, signed, block_log2)).tobytes()


def decode(section: bytes, n: int, k: int, signed: bool) -> Words:
    words, used = golomb_rice.read(np.frombuffer(section, np.uint8), n, k, signed)
    if used < len(section):
        raise CorruptMessage("bytes follow the section")
    return words


def size_of(words: Words, signed: bool, block_log2: int = 12) -> int:
    """Bytes of the section, as they are planned."""
    return golomb_rice.in_blocks(words, signed, block_log2).size


def check(words: Words, signed: bool, block_log2: int = 12) -> bytes:
    """The section, which both readers, ours and the page's, find the words in."""
    section, expected = (
        encode(words, signed, block_log2=block_log2),
        words if signed else words & ~np.uint32(1),
    )
    n = int(words[-1] >> 1) + 1 if words.size else 0
    for behind in (b"", b"values"):  # which are not read
        found, used = golomb_rice.read(np.frombuffer(section + behind, np.uint8), n, words.size, signed)
        np.testing.assert_array_equal(found, expected)
        assert used == len(section) == size_of(words, signed, block_log2)
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


@settings(max_examples=150)
@given(drawn=sorted_words(), signed=st.booleans(), block_log2=st.sampled_from([4, 5, 7, 12, 14]))
def test_any_words_come_back(drawn: tuple[int, Words], signed: bool, block_log2: int) -> None:
    n, words = drawn
    section = check(words, signed, block_log2)
    assert decode(section, n, words.size, signed).size == words.size


# --- how good the code is ----------------------------------------------------------------------


@in_turn("p", [0.1, 0.01, 0.001, 0.0001])
def test_size_is_within_1_5_percent_of_the_entropy(p: float) -> None:
    words = random_words(200_000, p)
    sent = words.size / (int(words[-1] >> 1) + 1)
    entropy = -(sent * math.log2(sent) + (1 - sent) * math.log2(1 - sent))
    bits = words.size * (entropy / sent + 1)
    assert bits < 8 * size_of(words, True) < 1.015 * bits


@settings(max_examples=300)
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


# --- bytes from anywhere: most of it is in test_message.py ---------------------------------------


def test_threads_change_neither_the_bytes_nor_what_is_read() -> None:
    n, k = 30_000_000, 2**21 + 70_001
    words = np.sort(np.random.default_rng(3).choice(n, k, replace=False)).astype(np.uint32) << np.uint32(1)
    written = []
    for threads in (1, 3):
        planned = golomb_rice.plan(words, True, threads)
        out = np.zeros(planned.size, np.uint8)
        planned.write(out)
        written.append(out)
        read, used = golomb_rice.read(out, n, k, True, threads)
        assert (read == words).all()
        assert used == out.size
    assert (written[0] == written[1]).all()
    broken = written[0].copy()
    broken[-9] ^= 255
    with pytest.raises(CorruptMessage, match="does not end"):
        golomb_rice.read(broken, n, k, True, 3)
