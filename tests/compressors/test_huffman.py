"""Huffman coding, against a slow one from the definition."""

import heapq
import itertools
from functools import cache

import numpy as np
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import huffman
from taugrad.compressors.ops.cpu.bitpack import symbol_type
from taugrad.compressors.ops.cpu.huffman import (
    STREAM,
    code_entries,
    code_lengths,
    longest,
    read_codebook,
    write_codebook,
)


def huffman_cost(counts: list[int]) -> tuple[int, int]:
    """Bits of an unlimited Huffman code (the sum of its merges), and its depth, the least possible."""
    heap = [(count, 0) for count in counts if count]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        (a, depth_a), (b, depth_b) = heapq.heappop(heap), heapq.heappop(heap)
        total += a + b
        heapq.heappush(heap, (a + b, max(depth_a, depth_b) + 1))
    return total, heap[0][1]


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


def canonical(lengths: list[int]) -> dict[int, str]:
    """Codes as text, first bit first: ascending with (length, symbol), each one more than the last."""
    codes: dict[int, str] = {}
    code, before = -1, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length):
        code = (code + 1) << (length - before)
        before = length
        codes[symbol] = format(code, f"0{length}b")
    return codes


def codebook_bits(lengths: list[int], limit: int) -> str:
    """The tokens of `huffman`'s text."""

    def gamma(value: int) -> str:
        digits = format(value, "b")
        return "0" * (len(digits) - 1) + digits

    bits, last = "", limit
    for length, equal in itertools.groupby(lengths):
        run = len(list(equal))
        if length == 0:
            bits += "110" + gamma(run)
            continue
        sign = str(int(length < last))
        step = abs(length - last)
        bits += "0" if step == 0 else "10" + sign if step == 1 else "111" + sign + gamma(step - 1)
        bits += "0" * (run - 1)
        last = length
    return bits


def to_bytes(bits: str) -> bytes:
    """Bits of a text in order, the lowest bit of a byte first, zeros at the end."""
    return bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def transcribed(symbols: np.ndarray, bits: int) -> bytes:
    """A section, written with text; only the code's lengths are the kernel's."""
    if not symbols.size:
        return b""
    counts = np.bincount(symbols, minlength=1 << bits)
    lengths = code_lengths(counts, longest(bits)).tolist()
    codebook = to_bytes(codebook_bits(lengths, longest(bits)))
    if np.count_nonzero(counts) == 1:
        return codebook
    codes = canonical(lengths)
    streams = [
        to_bytes("".join(codes[symbol] for symbol in symbols[low : low + STREAM].tolist()))
        for low in range(0, symbols.size, STREAM)
    ]
    return codebook + b"".join(len(stream).to_bytes(2, "little") for stream in streams) + b"".join(streams)


def planned(symbols: np.ndarray, bits: int, threads: int = 1) -> huffman.HuffmanPlan:
    """The section of the best code."""
    return huffman.plan(symbols, huffman.Code.of(huffman.histogram(symbols, bits, threads)), threads)


def decode(body: np.ndarray, bits: int, k: int, threads: int = 1) -> np.ndarray:
    """The symbols of a section and nothing else."""
    symbols, used = huffman.decode(body, bits, k, threads)
    if used < body.size:
        raise CorruptMessage("bytes follow the section")
    return symbols


def encoded(symbols: np.ndarray, bits: int, threads: int = 1) -> np.ndarray:
    """What `encode` writes between bytes that it must leave alone, over bytes it must not trust."""
    plan = planned(symbols, bits, threads)
    fenced = np.full(plan.size + 32, 0xA5, np.uint8)
    huffman.encode(plan, fenced[16 : 16 + plan.size], threads)
    assert (fenced[:16] == 0xA5).all()
    assert (fenced[16 + plan.size :] == 0xA5).all()
    return fenced[16 : 16 + plan.size]


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


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(0, 10**6), min_size=2, max_size=300).filter(lambda c: sum(map(bool, c)) > 1)
)
def test_a_code_whose_limit_does_not_bind_is_optimal(counts: list[int]) -> None:
    cost, depth = huffman_cost(counts)
    lengths = code_lengths(np.array(counts, np.int64), 18)
    found = int((lengths * np.array(counts)).sum())
    assert found == cost if depth <= 18 else found >= cost
    assert ((lengths > 0) == (np.array(counts) > 0)).all()


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.integers(0, 12).map(lambda e: 3**e), min_size=2, max_size=16),
    spare=st.integers(0, 2),
)
def test_a_limited_code_is_the_best_of_all(counts: list[int], spare: int) -> None:
    limit = max(1, (len(counts) - 1).bit_length()) + spare
    lengths = code_lengths(np.array(counts, np.int64), limit).astype(int)
    assert lengths.max() <= limit
    assert sum(2.0**-length for length in lengths) == 1
    assert int((lengths * np.array(counts)).sum()) == limited_cost(counts, limit)


def test_too_many_symbols_for_the_limit_are_refused() -> None:
    assert (code_lengths(np.ones(8, np.int64), 3) == 3).all()
    with pytest.raises(ValueError, match="more than 3 bits"):
        code_lengths(np.ones(9, np.int64), 3)


@settings(max_examples=100, deadline=None)
@given(counts=st.lists(st.integers(0, 1000), min_size=2, max_size=64))
def test_codes_are_canonical(counts: list[int]) -> None:
    lengths = code_lengths(np.array(counts, np.int64), 14)
    expected = canonical(lengths.tolist())
    for symbol, entry in enumerate(code_entries(lengths).tolist()):
        code = expected.get(symbol, "")
        assert entry & 63 == len(code)
        # The first bit is the lowest.
        assert entry >> 6 == int(code[::-1] or "0", 2)


@settings(max_examples=150, deadline=None)
@given(
    bits=st.integers(1, 10),
    k=st.integers(1, 3000),
    shape=shapes,
    seed=st.integers(0, 2**32 - 1),
)
def test_codebooks_are_as_described_and_come_back(bits: int, k: int, shape: str, seed: int) -> None:
    counts = np.bincount(draw_symbols(bits, k, shape, seed), minlength=1 << bits)
    lengths = code_lengths(counts, longest(bits))
    codebook = write_codebook(lengths, longest(bits))
    assert codebook.tobytes() == to_bytes(codebook_bits(lengths.tolist(), longest(bits)))
    found, size = read_codebook(np.append(codebook, np.uint8(0xFF)), 1 << bits, longest(bits))
    assert size == codebook.size
    assert (found == lengths).all()


@in_turn(
    ("lengths", "why"),
    [
        ([2, 2, 2, 0], "complete"),
        ([1, 1, 1, 0], "complete"),
        ([0, 0, 0, 0], "complete"),
        ([0, 2, 0, 0], "complete"),
        ([1, 3, 3, 3], "complete"),
        ([15, 1, 1, 0], "valid"),
    ],
)
def test_lengths_of_no_complete_code_are_refused(lengths: list[int], why: str) -> None:
    body = np.frombuffer(bytearray(to_bytes(codebook_bits(lengths, 14))), np.uint8)
    with pytest.raises(CorruptMessage, match=why):
        read_codebook(body, 4, 14)


@in_turn(
    ("bits", "why"),
    [
        ("1111" "0001100" "0" "110" "1" "110" "1", "valid"),  # two gaps of one instead of one of two
        ("1111" "0001100" "0" "110" "011", "valid"),  # a gap of three where two symbols are left
        ("1111" "0001100" "0" "110" + 20 * "0", "valid"),  # a number without end
        ("1111" "0001100" "0" "110" "010" "1", "set"),  # right, and then a bit in the padding
        ("1111" "0001101" "0" "110" "010", "valid"),  # shorter than 1
        ("1110" "1" "0" "110" "010", "valid"),  # longer than the limit
        ("1111" "000", "cut off"),
        ("", "cut off"),
    ],
)  # fmt: skip
def test_codebooks_nobody_wrote_are_refused(bits: str, why: str) -> None:
    right = np.frombuffer(bytearray(to_bytes("1111" "0001100" "0" "110" "010")), np.uint8)  # fmt: skip
    assert read_codebook(right, 4, 14)[0].tolist() == [1, 1, 0, 0]
    with pytest.raises(CorruptMessage, match=why):
        read_codebook(np.frombuffer(bytearray(to_bytes(bits)), np.uint8), 4, 14)


@settings(max_examples=150, deadline=None)
@given(
    bits=st.integers(1, 16),
    k=st.one_of(st.integers(1, 40), st.integers(STREAM - 5, STREAM + 5), st.integers(1, 5 * STREAM)),
    shape=shapes,
    seed=st.integers(0, 2**32 - 1),
    threads=st.integers(1, 3),
)
def test_symbols_come_back(bits: int, k: int, shape: str, seed: int, threads: int) -> None:
    symbols = draw_symbols(bits, k, shape, seed)
    body = encoded(symbols, bits, threads)
    found = decode(body, bits, k, threads)
    assert found.dtype == symbols.dtype
    assert (found == symbols).all()
    longer = np.append(body, np.full(9, 0xFF, np.uint8))
    again, used = huffman.decode(longer, bits, k, threads)
    assert used == body.size
    assert (again == symbols).all()


@in_turn("shape", SHAPES)
@in_turn(("bits", "k"), [(1, 70), (3, 4 * STREAM), (8, 4 * STREAM + 3), (10, 9001), (12, 5000)])
def test_sections_are_as_described(bits: int, k: int, shape: str) -> None:
    symbols = draw_symbols(bits, k, shape, 7)
    for threads in (1, 2, 3):
        assert encoded(symbols, bits, threads).tobytes() == transcribed(symbols, bits)


def test_golden_bytes() -> None:
    # Counts 5, 2, 1, 0 give lengths 1, 2, 2, 0 and codes 0, 10, 11. The codebook starts from 14: shorter by
    # 13 = 1111 0001100, longer by one = 100, the same = 0, a gap of one = 110 1: 19 bits, read from each
    # byte's right. Then one stream of 2 bytes: 0 10 0 11 0 0 10 0.
    symbols = np.array([0, 1, 0, 2, 0, 0, 1, 0], np.uint8)
    golden = [0b10001111, 0b10001001, 0b101, 2, 0, 0b00110010, 0b001]
    assert encoded(symbols, 2).tolist() == golden
    assert decode(np.array(golden, np.uint8), 2, 8).tolist() == symbols.tolist()


def test_golden_bytes_of_one_symbol() -> None:
    # A gap of 5 = 110 00101, length 1 = 1111 0001100, a gap of 250 = 110 000000011111010: no streams.
    golden = to_bytes("110" "00101" "1111" "0001100" "110" "000000011111010")  # fmt: skip
    assert encoded(np.full(10**5, 5, np.uint8), 8).tobytes() == golden
    assert encoded(np.full(1, 5, np.uint8), 8).tobytes() == golden
    body = np.frombuffer(bytearray(golden), np.uint8)
    assert (decode(body, 8, 10**5) == np.full(10**5, 5)).all()


@in_turn("bits", [8, 9, 10])
def test_gaussian_symbols_take_their_entropy(bits: int) -> None:
    k = 1_000_000
    values = np.random.default_rng(3).standard_normal(k)
    low, high = values.min(), values.max()
    top = (1 << bits) - 1
    symbols = np.clip((values - low) / (high - low) * (top + 1), 0, top).astype(symbol_type(bits))
    share = np.bincount(symbols)[np.unique(symbols)] / k
    entropy_bits = -k * (share * np.log2(share)).sum()
    plan = planned(symbols, bits)
    assert entropy_bits <= 8 * plan.size <= 1.01 * entropy_bits
    assert plan.code.codebook.size <= share.size / 2
    assert (decode(encoded(symbols, bits), bits, k) == symbols).all()


@in_turn(("bits", "k"), [(1, 999), (8, 70_003), (9, 70_001), (16, 300_000)])
def test_a_histogram_counts(bits: int, k: int) -> None:
    symbols = draw_symbols(bits, k, "gaussian", 5)
    for threads in (1, 2, 3):
        assert (huffman.histogram(symbols, bits, threads) == np.bincount(symbols, minlength=1 << bits)).all()


def accepted(body: np.ndarray, bits: int, k: int) -> bool:
    """Whether these bytes decode, to symbols that are valid, on any number of threads."""
    try:
        symbols = decode(body, bits, k)
    except CorruptMessage:
        with pytest.raises(CorruptMessage):
            decode(body, bits, k, 3)
        return False
    assert symbols.size == k
    assert int(symbols.max(initial=0)) < 1 << bits
    assert (decode(body, bits, k, 3) == symbols).all()
    return True


@settings(max_examples=60, deadline=None)
@given(bits=st.integers(1, 16), k=st.sampled_from([1, 5, 300, 4 * STREAM + 70]), shape=shapes, data=st.data())
def test_damaged_sections_are_symbols_or_refused(bits: int, k: int, shape: str, data: st.DataObject) -> None:
    body = encoded(draw_symbols(bits, k, shape, 11), bits)
    assert not accepted(body[: data.draw(st.integers(0, body.size - 1))].copy(), bits, k)
    assert not accepted(np.append(body, np.uint8(data.draw(st.integers(0, 255)))), bits, k)
    damaged = body.copy()
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, min(body.size - 1, 200)))] ^= 1 << data.draw(st.integers(0, 7))
    accepted(damaged, bits, k)
    accepted(body, bits, data.draw(st.integers(1, 5 * STREAM)))
    accepted(body, data.draw(st.integers(1, 16)), k)


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=80), bits=st.integers(1, 16), k=st.integers(1, 10_000))
def test_any_bytes_are_symbols_or_refused(body: bytes, bits: int, k: int) -> None:
    accepted(np.frombuffer(bytearray(body), np.uint8), bits, k)


def test_streams_must_end_where_the_table_says() -> None:
    symbols = draw_symbols(8, 6 * STREAM, "gaussian", 2)
    plan = planned(symbols, 8)
    body = encoded(symbols, 8)
    for stream in range(5):
        # One byte moves from a stream to the one behind it: the sum stays right.
        moved = body.copy()
        table = moved[plan.code.codebook.size : plan.code.codebook.size + 12].view("<u2")
        table[stream] -= 1
        table[stream + 1] += 1
        with pytest.raises(CorruptMessage, match="does not end"):
            decode(moved, 8, symbols.size)
    padding = encoded(np.array([0, 1, 0], np.uint8), 8)
    padding[-1] |= 0x80
    with pytest.raises(CorruptMessage, match="does not end"):
        decode(padding, 8, 3)


def test_wrong_arguments_are_refused() -> None:
    symbols = draw_symbols(8, 5000, "gaussian", 1)
    plan = planned(symbols, 8)
    out = np.zeros(plan.size, np.uint8)
    with pytest.raises(ValueError, match="uint16"):
        huffman.histogram(symbols, 9)
    with pytest.raises(ValueError, match="more than 4 bits"):
        huffman.histogram(symbols, 4)
    with pytest.raises(ValueError, match="for a section of"):
        huffman.encode(plan, out[:-1])
    symbols[:] = int(np.flatnonzero(code_lengths(huffman.histogram(symbols, 8), 14))[0])
    with pytest.raises(ValueError, match="planned"):
        huffman.encode(plan, out)


@in_turn("bits", [8, 12])
def test_streams_may_end_in_their_longest_codes_at_any_bit(bits: int) -> None:
    """A last group of codes that fills eight bytes leaves its last bits to a ninth."""
    counts = 2 ** np.arange(17, -1, -1)
    common = np.repeat(np.arange(counts.size), counts).astype(symbol_type(bits))
    rare = np.array([14, 15, 16, 17], common.dtype)
    longest_met = 0
    for prefix in range(40):
        symbols = np.concatenate([common, np.full(prefix, prefix % 9, common.dtype), rare])
        plan = planned(symbols, bits)
        longest_met += int(plan.code.lengths[rare].min() == longest(bits)) and symbols.size % 4 == 0
        assert (decode(encoded(symbols, bits), bits, symbols.size) == symbols).all()
    assert longest_met >= (5 if bits == 8 else 0)
