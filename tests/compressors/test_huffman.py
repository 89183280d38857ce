"""Huffman coding, against the page's decoder and the best code of all."""

from functools import cache

import numpy as np
import page_decoder
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import fenced

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.array import symbol_type
from taugrad.compressors.ops.cpu import huffman
from taugrad.compressors.ops.cpu.huffman import STREAM, find_lengths, longest


def limited_cost(counts: list[int], limit: int) -> int:
    """Bits of the best code of at most `limit` bits: every number of leaves on every level is tried."""
    weights = sorted((count for count in counts if count), reverse=True)

    @cache
    def best(level: int, placed: int, nodes: int) -> float:
        left = len(weights) - placed
        if left == 0:
            return 0 if nodes == 0 else float("inf")
        if level > limit or nodes == 0 or nodes > left:
            return float("inf")
        return min(
            level * sum(weights[placed : placed + leaves])
            + best(level + 1, placed + leaves, 2 * (nodes - leaves))
            for leaves in range(nodes + 1)
        )

    return int(best(1, 0, 2))


def code_of(symbols: np.ndarray, bits: int, threads: int = 1) -> huffman.Code:
    return huffman.Codes.of(symbols, np.array([symbols.size]), np.array([bits]), threads).code(0)


def decode(body: np.ndarray, bits: int, k: int, threads: int = 1) -> np.ndarray:
    """The symbols of a section and nothing else."""
    symbols, used = huffman.decode(body, bits, k, threads)
    if used < body.size:
        raise CorruptMessage("bytes follow the section")
    return symbols


def encoded(symbols: np.ndarray, bits: int, threads: int = 1) -> np.ndarray:
    return fenced(*huffman.plan(symbols, code_of(symbols, bits, threads), threads))


def draw_symbols(bits: int, k: int, shape: str, seed: int) -> np.ndarray:
    """Symbols of one of the distributions that quantizers give, or that break coders."""
    rng = np.random.default_rng(seed)
    top = (1 << bits) - 1
    values = {
        "uniform": lambda: rng.integers(0, top + 1, k),
        "gaussian": lambda: rng.normal(top / 2, top / 9 + 0.1, k),
        "geometric": lambda: rng.geometric(0.4, k) - 1,
        "two": lambda: rng.integers(0, 2, k) * top,
        "one": lambda: np.full(k, seed % (top + 1)),
        "every": lambda: np.concatenate([np.arange(min(k, top + 1)), np.zeros(max(0, k - top - 1))]),
    }[shape]()
    return np.clip(values, 0, top).astype(symbol_type(bits))


SHAPES = ("uniform", "gaussian", "geometric", "two", "one", "every")
shapes = st.sampled_from(SHAPES)


@settings(max_examples=150)
@given(
    counts=st.lists(st.integers(0, 12).map(lambda e: 3**e), min_size=2, max_size=16),
    spare=st.integers(0, 2) | st.just(14),
)
def test_a_limited_code_is_the_best_of_all(counts: list[int], spare: int) -> None:
    """Where the limit does not bind, too."""
    limit = max(1, (len(counts) - 1).bit_length()) + spare
    code_lengths = np.zeros(len(counts), np.uint8)
    find_lengths(np.array(counts, np.int64), limit, code_lengths)
    lengths = code_lengths.astype(int)
    assert lengths.max() <= limit
    assert ((lengths > 0) == (np.array(counts) > 0)).all()
    assert sum(2.0**-length for length in lengths) == 1
    assert int((lengths * np.array(counts)).sum()) == limited_cost(counts, limit)


@settings(max_examples=150)
@given(
    bits=st.integers(1, 16),
    k=st.one_of(st.integers(1, 40), st.integers(STREAM - 5, STREAM + 5), st.integers(1, 5 * STREAM)),
    shape=shapes,
    seed=st.integers(0, 2**32 - 1),
    threads=st.integers(1, 3),
)
def test_symbols_come_back(bits: int, k: int, shape: str, seed: int, threads: int) -> None:
    """Through our reader and the page's, whatever follows the section."""
    symbols = draw_symbols(bits, k, shape, seed)
    body = encoded(symbols, bits, threads)
    result = decode(body, bits, k, threads)
    assert result.dtype == symbols.dtype
    assert (result == symbols).all()
    assert encoded(symbols, bits).tobytes() == body.tobytes()
    if k <= STREAM + 5:
        page = page_decoder.Body(body.tobytes())
        assert page_decoder.huffman_coded(page, bits, k) == symbols.tolist()
        assert not page.data
    longer = np.append(body, np.full(9, 0xFF, np.uint8))
    again, used = huffman.decode(longer, bits, k, threads)
    assert used == body.size
    assert (again == symbols).all()


@in_turn("bits", [8, 10])
def test_gaussian_symbols_take_their_entropy(bits: int) -> None:
    k = 1_000_000
    values = np.random.default_rng(3).standard_normal(k)
    low, high = values.min(), values.max()
    top = (1 << bits) - 1
    symbols = np.clip((values - low) / (high - low) * (top + 1), 0, top).astype(symbol_type(bits))
    share = np.bincount(symbols)[np.unique(symbols)] / k
    entropy_bits = -k * (share * np.log2(share)).sum()
    code = code_of(symbols, bits)
    assert entropy_bits <= 8 * huffman.plan(symbols, code).size <= 1.01 * entropy_bits
    assert code.codebook.size <= share.size / 2
    assert (decode(encoded(symbols, bits), bits, k) == symbols).all()


@settings(max_examples=60)
@given(bits=st.integers(1, 16), k=st.sampled_from([1, 5, 300, 4 * STREAM + 70]), shape=shapes, data=st.data())
def test_damaged_sections_are_the_same_symbols_by_any_threads_or_refused(
    bits: int, k: int, shape: str, data: st.DataObject
) -> None:
    damaged = encoded(draw_symbols(bits, k, shape, 11), bits)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(damaged.size - 1, 200)))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        symbols = decode(damaged, bits, k)
    except CorruptMessage:
        with pytest.raises(CorruptMessage):
            decode(damaged, bits, k, 3)
        return
    assert symbols.size == k
    assert int(symbols.max(initial=0)) < 1 << bits
    assert (decode(damaged, bits, k, 3) == symbols).all()


def test_streams_must_end_where_the_table_says() -> None:
    symbols = draw_symbols(8, 6 * STREAM, "gaussian", 2)
    begin = code_of(symbols, 8).codebook.size
    body = encoded(symbols, 8)
    for stream in range(5):
        # One byte moves from a stream to the one behind it: the sum stays right.
        moved = body.copy()
        table = moved[begin : begin + 12].view("<u2")
        table[stream] -= 1
        table[stream + 1] += 1
        with pytest.raises(CorruptMessage, match="does not end"):
            decode(moved, 8, symbols.size)
    padding = encoded(np.array([0, 1, 0], np.uint8), 8)
    padding[-1] |= 0x80
    with pytest.raises(CorruptMessage, match="does not end"):
        decode(padding, 8, 3)


@in_turn("bits", [8, 12])
def test_streams_may_end_in_their_longest_codes_at_any_bit(bits: int) -> None:
    """A last group of codes that fills eight bytes leaves its last bits to a ninth."""
    counts = 2 ** np.arange(17, -1, -1)
    common = np.repeat(np.arange(counts.size), counts).astype(symbol_type(bits))
    rare = np.array([14, 15, 16, 17], common.dtype)
    longest_met = 0
    for prefix in range(40):
        symbols = np.concatenate([common, np.full(prefix, prefix % 9, common.dtype), rare])
        code = code_of(symbols, bits)
        longest_met += int(code.lengths[rare].min() == longest(bits)) and symbols.size % 4 == 0
        assert (decode(encoded(symbols, bits), bits, symbols.size) == symbols).all()
    assert longest_met >= (5 if bits == 8 else 0)
