"""All of a bucket in one call against one parameter, message or update after the other."""

import zlib

import messages
import numpy as np
import pytest
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.bucket.adding import sum_sparse
from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part, Place, Unit
from taugrad.compressors.config import read_config
from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.ops.cpu import avx512, golomb_rice
from taugrad.compressors.ops.cpu.golomb_rice_sections import measured
from taugrad.compressors.ops.cpu.rows import table
from taugrad.compressors.ops.cpu.threshold import (
    SPARE,
    VALUE_DTYPE,
    WITHOUT_VALUES,
    ThresholdRule,
    threshold_pass,
    threshold_rows,
)
from taugrad.compressors.ops.faults import CORRUPT
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire import message
from taugrad.compressors.wire.message import is_refusal
from taugrad.compressors.wire.update import Update

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt", "strom")


def words_below(n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    positions = np.sort(rng.choice(n, min(k, n), replace=False)).astype(np.uint32)
    return positions << np.uint32(1) | rng.integers(0, 2, positions.size).astype(np.uint32)


@in_turn("rule", RULES)
@in_turn("vectorized", [False, True] if avx512.supported() else [False])
@in_turn("threads", [1, 2, 3])
def test_a_pass_over_a_bucket_is_that_over_each_parameter(
    rule: ThresholdRule, vectorized: bool, threads: int
) -> None:
    rng = np.random.default_rng(3)
    sizes = [1, 0, 17, 150_000, 16, 90_001, 5, 200_000]
    gradients = [rng.standard_normal(size).astype(np.float32) for size in sizes]
    gradients[3][77] = np.nan
    taus = rng.uniform(0.5, 3, len(sizes)).astype(np.float32)
    bases = np.cumsum([0, *sizes[:-1]]).tolist()
    room = sum(sizes) + SPARE

    def arrays() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
        residuals = [np.full(size, 0.25, np.float32) for size in sizes]
        values = np.zeros(1 if rule in WITHOUT_VALUES else room, VALUE_DTYPE[rule])
        return residuals, np.zeros(room, np.uint32), values

    residuals, words, values = arrays()
    addresses = [[each.ctypes.data for each in some] for some in (residuals, gradients)]
    rows = table(*addresses, sizes, bases)
    found = threshold_rows(rule, rows, taus, words, values, threads=threads, vectorized=vectorized)

    expected, their_words, their_values = arrays()
    sent = 0
    for i, (residual, gradient) in enumerate(zip(expected, gradients, strict=True)):
        one = threshold_pass(
            rule, residual, gradient, taus[i], their_words, their_values,
            base=bases[i], sent=sent, vectorized=vectorized,
        )  # fmt: skip
        sent = one.sent
        assert found.ends[i] == sent
        assert found.nonfinite[i] == one.nonfinite == (i == 3)
        assert found.residual_squares[i] == pytest.approx(one.residual_squares, rel=1e-6)
    assert sent > 1000
    assert np.array_equal(words[:sent], their_words[:sent])
    if rule not in WITHOUT_VALUES:
        assert np.array_equal(values[:sent], their_values[:sent])
    for mine, theirs in zip(residuals, expected, strict=True):
        assert mine.tobytes() == theirs.tobytes()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    signed=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_sections_at_once_are_those_of_the_encoder(sizes: list[int], signed: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = [words_below(100_000, k, rng) for k in sizes]
    sections = measured(words, signed)
    each = [golomb_rice.shortest(one, signed) for one in words]
    assert sections.sizes == [size for size, _ in each]
    gaps = rng.integers(0, 40, len(words))
    begins = np.cumsum(gaps) + np.concatenate(([0], np.cumsum(sections.sizes)[:-1]))
    out = np.zeros(int(gaps.sum()) + sum(sections.sizes), np.uint8)
    sections.write(range(len(words)), out, begins.tolist())
    for one, begin, (size, log2) in zip(words, begins, each, strict=True):
        alone = np.empty(size, np.uint8)
        golomb_rice.encode(one, signed, alone, block_log2=log2)
        assert out[begin : begin + size].tobytes() == alone.tobytes()


def test_sections_of_positions_that_do_not_ascend_are_refused() -> None:
    good = np.array([2, 4, 8], np.uint32)
    with pytest.raises(ValueError, match="ascend"):
        measured([good, np.array([8, 4], np.uint32)], False)


@in_turn("form", ["strom", "wgt", "qgt"])
@in_turn("broken", [0, 2, 4])
def test_of_many_messages_the_broken_one_is_told(form: str, broken: int) -> None:
    rng = np.random.default_rng(broken)
    updates = []
    for k in (5, 400, 0, 77, 2000):
        words = words_below(10_000, max(k, 1), rng)
        values = {
            "wgt": np.where(words & 1, -2.0, 2.0).astype(np.float32),
            "qgt": rng.integers(1, 9, words.size).astype(np.uint8),
        }.get(form, np.empty(0, np.uint8))
        updates.append(Update(form, 10_000, np.float32(1), words, values))  # type: ignore[arg-type]
    written = messages.write_all(updates, ["golomb_rice"] * 5)
    ns = [10_000] * 5
    for update, read in zip(updates, message.read_all(written, ns), strict=True):
        assert isinstance(read, Update)
        assert np.array_equal(read.words, update.words)
        assert np.array_equal(read.values, update.values)
    alone = written[broken].copy()
    alone[message.HEADER_BYTES] = 99  # blocks of 2^99 words
    alone[28:32] = 0
    alone[28:32] = np.array([zlib.crc32(alone.data)], "<u4").view(np.uint8)
    with pytest.raises(CorruptMessage) as by_itself:
        message.read(alone, 10_000)
    damaged = [alone if i == broken else each for i, each in enumerate(written)]
    with pytest.raises(CorruptMessage) as among_others:
        message.read_all(damaged, ns)
    assert str(among_others.value) == str(by_itself.value)
    assert str(by_itself.value) == CORRUPT[8]


@in_turn("divisor", [1, 2, 3, 7, 8])
@in_turn("density", [0.0005, 0.02, 0.4])
def test_a_sum_in_one_pass_is_zeros_added_to_and_divided(divisor: int, density: float) -> None:
    rng = np.random.default_rng(divisor)
    n, updates = 50_000, []
    unit = Unit(n - 9000, 9000, (Place(0, 9000, n - 9000),))
    whole = Unit(n, 0, (Place(0, 0, n),))
    for about in (whole, unit, whole, unit, whole):
        for form in ("strom", "qgt", "wgt", "bgt"):
            words = words_below(about.n, int(density * about.n), rng)
            tau = np.float32(rng.uniform(1e-3, 1))
            values = {
                "wgt": rng.standard_normal(words.size).astype(np.float32),
                "qgt": rng.integers(1, 256, words.size).astype(np.uint8),
            }.get(form, np.empty(0, np.uint8))
            updates.append((Update(form, about.n, tau, words, values), about))  # type: ignore[arg-type]
    expected = np.zeros(n, np.float32)
    for update, about in updates:
        assert update.words is not None
        np.add.at(expected, (update.words >> 1).astype(np.int64) + about.base, update.floats())
    expected /= np.float32(divisor)
    total = np.full(n, np.nan, np.float32)
    sum_sparse([updates], divisor, total)
    assert total.tobytes() == expected.tobytes()


def test_a_sum_of_nothing_is_zeros() -> None:
    total = np.full(10, np.nan, np.float32)
    sum_sparse([[(Update.empty("wgt", 10, np.float32(1)), Unit(10, 0, ()))]], 2, total)
    assert total.tobytes() == bytes(40)


@in_turn("dtype", [torch.float32, torch.bfloat16])
def test_velocities_of_a_bucket_are_those_of_each_parameter(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    sizes, momentum = [3, 1000, 0, 77], 0.9
    compressor = Compressor(read_config(f"wgt(0.5, momentum={momentum})"))  # type: ignore[arg-type]
    velocities = [torch.randn(size, generator=generator) for size in sizes]
    before = [each.clone() for each in velocities]
    context = Context()
    for step in range(3):
        gradients = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
        gradients[1][step] = float("inf")
        residuals = [torch.zeros(size) for size in sizes]
        zipped = zip("abcd", gradients, residuals, velocities, strict=True)
        parts = [Part(*each) for each in zipped]
        outgoing = compressor.compress(parts, compressor.layout("abcd", sizes), context)
        assert is_refusal(outgoing.payload)
        for i, (velocity, gradient, residual) in enumerate(zip(before, gradients, residuals, strict=True)):
            moved = velocity * momentum + gradient.float()
            finite = torch.isfinite(moved)
            sent = finite & (moved.abs() >= 0.5)
            # The gradient is refused as a whole: what was taken out is put back.
            assert torch.equal(residual, torch.where(finite, moved, 0))
            assert torch.equal(velocities[i], torch.where(sent, 0, torch.where(finite, moved, velocity)))
            before[i] = velocities[i].clone()
