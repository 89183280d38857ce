"""The k largest of every chunk against a stable sort, and the packing of their indices by hand."""

from typing import Any

import numpy as np
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import avx512
from taugrad.compressors.ops.cpu.chunked import (
    chunked_pass,
    index_bytes,
    index_count,
    read_indices,
    write_indices,
)
from taugrad.compressors.ops.cpu.threshold import SPARE

Floats = NDArray[np.float32]

NAN, INF, LARGEST = float("nan"), float("inf"), float(np.finfo(np.float32).max)
CANARY = 0xA5

vectorized = pytest.mark.parametrize(
    "vectorized",
    [
        pytest.param(
            True, marks=pytest.mark.skipif(not avx512.supported(), reason="this CPU has no AVX-512")
        ),
        False,
    ],
    ids=["avx512", "portable"],
)
CHUNKS = st.sampled_from([2, 4, 8, 16, 32, 64, 256])


class Fenced:
    """An array that starts at any element of a larger one, whose other bytes must stay as they are."""

    def __init__(self, size: int, dtype: Any, offset: int = 0) -> None:
        self._whole = np.full((offset + size + 40) * np.dtype(dtype).itemsize, CANARY, np.uint8).view(dtype)
        self._low, self._high = offset, offset + size
        self.array = self._whole[self._low : self._high]

    def assert_fence_stands(self) -> None:
        for outside in (self._whole[: self._low], self._whole[self._high :]):
            assert (outside.view(np.uint8) == CANARY).all()


def largest(total: Floats, chunk: int, keep: int) -> list[int]:
    """Indices sent, by definition: of each chunk's finite elements the first by (-|a|, index)."""
    places: list[int] = []
    for low in range(0, total.size, chunk):
        part = total[low : low + chunk]
        finite = np.flatnonzero(np.isfinite(part))
        order = finite[np.argsort(-np.abs(part[finite]), kind="stable")]
        places += sorted((low + order[:keep]).tolist())
    return places


def check(
    residual: Floats,
    gradient: Floats,
    chunk: int,
    keep: int,
    use: bool,
    offset: int = 0,
    base: int = 0,
    before: int = 0,
) -> None:
    """Runs one pass behind `before` words and compares all that it says and writes."""
    n = residual.size
    with np.errstate(all="ignore"):
        total = residual + gradient
    places = largest(total, chunk, keep)
    kept = np.where(np.isfinite(total), total, residual)
    sent_values = kept[places] + np.float32(0)
    kept[places] = 0

    r, g = Fenced(n, np.float32, offset), Fenced(n, np.float32, (offset + 3) % 17)
    r.array[:], g.array[:] = residual, gradient
    words = Fenced(before + n + SPARE, np.uint32, offset)
    values = Fenced(before + n + SPARE, np.float32, offset)
    words.array[:before], values.array[:before] = 77, 0.5
    found = chunked_pass(
        r.array, g.array, chunk, keep, words.array, values.array, base=base, sent=before, vectorized=use
    )
    assert found.sent == before + len(places)
    assert found.nonfinite == (not np.isfinite(total).all())
    if not found.nonfinite:
        assert len(places) == index_count(n, chunk, keep)
    assert (words.array[:before] == 77).all()
    assert (values.array[:before] == 0.5).all()
    signs = (sent_values < 0).astype(int).tolist()
    expected = [(base + i) << 1 | sign for i, sign in zip(places, signs, strict=True)]
    assert words.array[before : found.sent].tolist() == expected
    assert values.array[before : found.sent].tobytes() == sent_values.tobytes()
    assert r.array.tobytes() == kept.tobytes()
    assert g.array.tobytes() == gradient.tobytes()
    if (np.abs(kept) < 1e15).all():
        squares = float(np.square(kept, dtype=np.float64).sum())
        assert found.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-42)
    for fenced in (r, g, words, values):
        fenced.assert_fence_stands()


@vectorized
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_largest_of_any_floats_are_sent(vectorized: bool, data: st.DataObject) -> None:
    special = st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45, 1e-40, 2.0**-126, LARGEST])
    element = st.one_of(st.floats(width=32), special)
    n = data.draw(st.integers(0, 80))
    residual, gradient = (
        np.array(data.draw(st.lists(element, min_size=n, max_size=n)), np.float32) for _ in range(2)
    )
    chunk = data.draw(CHUNKS)
    keep = data.draw(st.integers(0, chunk))
    offset, base = data.draw(st.integers(0, 16)), data.draw(st.integers(0, 99))
    check(residual, gradient, chunk, keep, vectorized, offset, base, before=keep % 5)


@vectorized
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 1000),
    chunk=CHUNKS,
    share=st.floats(0, 1),
    levels=st.sampled_from([1, 2, 5, 10**6]),
    zeros=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
)
def test_ties_go_to_the_lower_indices_and_zeros_fill_up(
    vectorized: bool, seed: int, n: int, chunk: int, share: float, levels: int, zeros: float
) -> None:
    rng = np.random.default_rng(seed)
    gradient = rng.integers(-levels, levels + 1, n).astype(np.float32)
    gradient[rng.random(n) < zeros] = -0.0
    residual = np.where(rng.random(n) < 0.5, -0.0, 0.0).astype(np.float32)
    check(residual, gradient, chunk, round(share * chunk), vectorized)


@vectorized
@in_turn(
    ("n", "chunk", "keep"),
    [(20_000, 4096, 41), (16_384, 4096, 1), (70_003, 65_536, 655), (9000, 4096, 4096), (9001, 1024, 500)],
)
def test_chunks_of_very_different_size(vectorized: bool, n: int, chunk: int, keep: int) -> None:
    """Each chunk's cut is a bad guess for the next one."""
    rng = np.random.default_rng(n)
    scale = np.resize([1e-44, 1e30, 1.0, 0.0, 1e-30, 1e-38], -(-n // chunk)).repeat(chunk)[:n]
    for order in (scale, scale[::-1]):
        gradient = (rng.standard_normal(n) * order).astype(np.float32)
        check(np.zeros(n, np.float32), gradient, chunk, keep, vectorized, offset=5, base=10, before=3)


@vectorized
@in_turn("broken", [NAN, INF, -INF])
def test_an_element_that_is_not_finite_is_neither_sent_nor_kept(vectorized: bool, broken: float) -> None:
    rng = np.random.default_rng(1)
    residual, gradient = rng.standard_normal((2, 150)).astype(np.float32)
    for at in (0, 15, 63, 64, 149):
        hurt = gradient.copy()
        hurt[at] = broken
        for keep in (0, 1, 5, 64):
            check(residual, hurt, 64, keep, vectorized)
    check(residual, np.full(150, broken, np.float32), 64, 5, vectorized)
    overflowing = np.full(150, LARGEST, np.float32)
    check(overflowing, overflowing, 64, 5, vectorized)


@vectorized
def test_passes_follow_one_another(vectorized: bool) -> None:
    rng = np.random.default_rng(0)
    sizes = (30, 0, 100, 7)
    total = rng.standard_normal(sum(sizes)).astype(np.float32)
    words, values = np.empty(total.size + SPARE, np.uint32), np.empty(total.size + SPARE, np.float32)
    base = sent = 0
    expected: list[int] = []
    for size in sizes:
        part = total[base : base + size]
        expected += [base + i for i in largest(part, 16, 3)]
        residual = np.zeros(size, np.float32)
        found = chunked_pass(
            residual, part, 16, 3, words, values, base=base, sent=sent, vectorized=vectorized
        )
        base, sent = base + size, found.sent
    assert (words[:sent] >> 1).tolist() == expected
    assert values[:sent].tolist() == total[expected].tolist()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 300), keep=st.integers(0, 16), broken=st.booleans())
def test_nothing_is_lost(seed: int, n: int, keep: int, broken: bool) -> None:
    """What was sent can be put back, also when the update is thrown away for a NaN."""
    rng = np.random.default_rng(seed)
    residual, gradient = rng.standard_normal((2, n)).astype(np.float32)
    expected = residual + gradient
    if broken:
        at = int(rng.integers(n))
        gradient[at], expected[at] = NAN, residual[at]
    words, values = np.empty(n + SPARE, np.uint32), np.empty(n + SPARE, np.float32)
    found = chunked_pass(residual, gradient, 16, keep, words, values)
    residual[words[: found.sent] >> 1] += values[: found.sent]
    assert residual.tolist() == expected.tolist()


@in_turn(("chunk", "keep"), [(0, 0), (1, 1), (3, 1), (-4, 1), (100, 1), (1 << 17, 1), (8, 9), (8, -1)])
def test_sizes_out_of_range_are_refused(chunk: int, keep: int) -> None:
    empty, words = np.empty(0, np.float32), np.empty(SPARE, np.uint32)
    for call in (
        lambda: chunked_pass(empty, empty, chunk, keep, words, np.empty(SPARE, np.float32)),
        lambda: index_count(10, chunk, keep),
    ):
        with pytest.raises(ValueError, match="must be"):
            call()


# Packed indices.


def packed(positions: list[int], chunk: int) -> list[int]:
    """What `write_indices` writes for positions, between bytes that it must leave alone."""
    out = Fenced(index_bytes(len(positions), chunk), np.uint8, 7)
    words = np.array(positions, np.uint32) << np.uint32(1) | np.uint32(1)
    write_indices(words, np.array([0]), np.array([words.size]), chunk, out.array)
    out.assert_fence_stands()
    return out.array.tolist()


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


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(0, 400),
    bits=st.integers(1, 16),
    share=st.floats(0, 1),
    base=st.integers(0, 2**31 - 1000),
)
def test_what_a_pass_sent_comes_back(seed: int, n: int, bits: int, share: float, base: int) -> None:
    rng = np.random.default_rng(seed)
    chunk = 1 << bits
    keep = min(round(share * chunk), chunk) if bits < 10 else round(share * 300)
    words, values = np.empty(n + SPARE, np.uint32), np.empty(n + SPARE, np.float32)
    gradient = rng.standard_normal(n).astype(np.float32)
    sent = chunked_pass(np.zeros(n, np.float32), gradient, chunk, keep, words, values, base=base).sent
    body, firsts = np.empty(index_bytes(sent, chunk), np.uint8), np.array([base])
    write_indices(words[:sent], firsts, np.array([sent]), chunk, body)
    positions = (words[:sent] >> 1) - np.uint32(base)
    assert body.tolist() == transcription(positions.tolist(), chunk)
    found = read_indices(body, firsts, np.array([n]), chunk, keep)
    assert found.tolist() == (words[:sent] & ~np.uint32(1)).tolist()


@settings(max_examples=300, deadline=None)
@given(data=st.data(), n=st.integers(0, 60), bits=st.integers(1, 5))
def test_any_bytes_are_what_the_encoder_writes_or_corrupt(data: st.DataObject, n: int, bits: int) -> None:
    chunk = 1 << bits
    keep = data.draw(st.integers(0, chunk))
    size = index_bytes(index_count(n, chunk, keep), chunk)
    body = list(data.draw(st.binary(min_size=size, max_size=size)))
    try:
        positions = read(body, n, chunk, keep)
    except CorruptMessage:
        return
    assert len(positions) == index_count(n, chunk, keep)
    assert positions == sorted(set(positions))
    assert all(position < n for position in positions)
    assert packed(positions, chunk) == body


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
        with pytest.raises(CorruptMessage, match="padding"):
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
