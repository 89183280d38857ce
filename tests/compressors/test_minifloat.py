"""Short floating point formats: the kernels against torch's conversions and against exact arithmetic."""

from bisect import bisect
from fractions import Fraction

import numpy as np
import pytest
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import write_amounts
from numpy.typing import NDArray

from taugrad.compressors.ops.cpu import blockwise
from taugrad.compressors.ops.cpu.block_rows import fits_rows
from taugrad.compressors.ops.cpu.minifloat import (
    FP8_EXPONENTS,
    HalfFormat,
    fp8_pass,
    half_pass,
)
from taugrad.compressors.ops.results import QuantizedPass

Floats = NDArray[np.float32]
F32 = np.float32
MAX = float(np.finfo(np.float32).max)
LARGEST: dict[HalfFormat, float] = {"fp16": 65504.0, "bf16": float(torch.finfo(torch.bfloat16).max)}
TORCH: dict[HalfFormat, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
halves = in_turn("kind", ["fp16", "bf16"])


def many_floats() -> Floats:
    """All exponents and signs, and for every float16 and bfloat16: itself, its neighbours, ties."""
    anything = np.random.default_rng(0).integers(0, 2**32, 300_000, dtype=np.uint32)
    short = np.arange(2**16, dtype=np.uint16)
    exact = np.concatenate([short.view(np.float16).astype(F32), (short.astype(np.uint32) << 16).view(F32)])
    exact = exact[np.isfinite(exact)]
    ordered = np.unique(exact)
    ties = ordered[:-1] / 2 + ordered[1:] / 2
    around = [np.nextafter(x, F32(sign * np.inf)) for x in (exact, ties) for sign in (1, -1)]
    numbers = np.concatenate([anything.view(F32), exact, ties, *around]).astype(F32)
    return numbers[np.isfinite(numbers)]


def bits_of(values: Floats) -> NDArray[np.uint32]:
    return values.view(np.uint32)


@halves
def test_halves_are_what_torch_makes_of_them(kind: HalfFormat) -> None:
    a = many_floats()
    symbols, values = np.empty(a.size, np.uint16), np.empty(a.size, F32)
    assert half_pass(kind, None, a, symbols) == QuantizedPass(0.0, False)
    expected = torch.from_numpy(a).clamp(-LARGEST[kind], LARGEST[kind]).to(TORCH[kind])
    assert (symbols == expected.view(torch.uint16).numpy()).all()
    write_amounts(kind, symbols, 0, (), values)
    assert (bits_of(values) == bits_of(expected.float().numpy())).all()
    write_amounts(kind, symbols, 0, (), values, add=True)
    assert (bits_of(values) == bits_of((expected.float() + expected.float()).numpy())).all()


@halves
def test_what_a_half_leaves_out_is_kept(kind: HalfFormat) -> None:
    rng = np.random.default_rng(1)
    residual, gradient = (rng.standard_normal((2, 10_001)) * 1e5).astype(F32)
    a = residual + gradient
    symbols, values = np.empty(a.size, np.uint16), np.empty(a.size, F32)
    report = half_pass(kind, residual, gradient, symbols)
    write_amounts(kind, symbols, 0, (), values)
    assert (bits_of(residual) == bits_of(a - values)).all()
    assert (values.astype(np.float64) + residual == a).all()  # these formats leave out exact numbers
    assert report.residual_squares == pytest.approx(np.square(residual, dtype=np.float64).sum(), rel=1e-5)
    assert np.abs(values).max() <= LARGEST[kind]


def test_fp8_is_what_torch_makes_of_it() -> None:
    short = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    exact = np.unique(short[np.isfinite(short)])
    ties = (exact[:-1] + exact[1:]) / 2
    around = [np.nextafter(x, F32(sign * np.inf)) for x in (exact, ties) for sign in (1, -1)]
    others = many_floats()
    a = np.concatenate([exact, ties, *around, others])
    a = a[np.abs(a) <= 448].astype(F32)
    symbols, exponents, values = np.empty(a.size, np.uint8), np.empty(1, np.int8), np.empty(a.size, F32)
    fp8_pass(None, a, 0, symbols, exponents)
    assert exponents.tolist() == [0]
    expected = torch.from_numpy(a).to(torch.float8_e4m3fn)
    assert (symbols == expected.view(torch.uint8).numpy()).all()
    write_amounts("fp8", symbols, 0, (exponents,), values)
    assert (bits_of(values) == bits_of(expected.float().numpy())).all()


def fp8_magnitudes() -> list[Fraction]:
    """The finite magnitudes of e4m3fn in order of their bits: 4 bits of exponent, bias 7, 3 of mantissa."""
    numbers = []
    for short in range(0x7F):
        exponent, mantissa = short >> 3, short & 7
        numbers.append(Fraction(mantissa + 8 * (exponent > 0)) * Fraction(2) ** (max(exponent, 1) - 10))
    return numbers


MAGNITUDES = fp8_magnitudes()


def transcribe_fp8(a: Floats) -> tuple[list[int], int, list[float]]:
    """One block by the definition, in fractions: symbols, exponent and values."""
    largest = max(abs(Fraction(float(x))) for x in a)
    exponent = 0
    if largest:
        exponent = FP8_EXPONENTS[0]
        while largest > 448 * Fraction(2) ** exponent and exponent < FP8_EXPONENTS[1]:
            exponent += 1
    symbols, values = [], []
    for x in a:
        scaled = abs(Fraction(float(x))) / Fraction(2) ** exponent
        above = min(bisect(MAGNITUDES, scaled), 0x7E)
        distances = [(abs(scaled - MAGNITUDES[s]), s % 2, s) for s in (max(above - 1, 0), above)]
        short = min(distances)[2]
        symbols.append(short | 0x80 * bool(np.signbit(x)))
        values.append(float(np.copysign(float(MAGNITUDES[short] * Fraction(2) ** exponent), x)))
    return symbols, exponent, values


numbers = st.one_of(
    st.floats(-MAX / 2, MAX / 2, width=32),
    st.floats(-(2.0**-123), 2.0**-123, width=32),
    st.floats(-500, 500, width=32),
    st.sampled_from([0.0, -0.0, 448.0, 1e-45, MAX, -MAX, 2.0**-126, 1.75, 1.7500001192092896]),
)


@settings(max_examples=300, deadline=None)
@given(listed=st.lists(numbers, max_size=40), block=st.integers(0, 50), keep=st.booleans())
def test_scaled_fp8_does_what_the_definition_says(listed: list[float], block: int, keep: bool) -> None:
    a = np.array(listed, F32)
    blocks = blockwise.block_count(a.size, block)
    symbols, exponents, values = np.empty(a.size, np.uint8), np.empty(blocks, np.int8), np.empty(a.size, F32)
    kept = np.full(a.size, -0.0, F32) if keep else None
    report = fp8_pass(kept, a, block, symbols, exponents)
    write_amounts("fp8", symbols, block, (exponents,), values)
    length = block or max(a.size, 1)
    for b, first in enumerate(range(0, a.size, length)):
        at = slice(first, first + length)
        expected = transcribe_fp8(a[at])
        assert symbols[at].tolist() == expected[0]
        assert exponents[b] == expected[1]
        assert bits_of(values[at]).tolist() == bits_of(np.array(expected[2], F32)).tolist()
    assert np.isfinite(values).all()
    if kept is not None:
        assert bits_of(kept).tolist() == bits_of(a - values).tolist()
        squares = np.square(kept, dtype=np.float64).sum()
        assert report.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-300)


def run_pass(kind: str, residual: Floats | None, gradient: Floats, threads: int) -> QuantizedPass:
    """A pass whose symbols are of no interest; `fp8` and its block's length, or a half."""
    n = gradient.size
    if kind in TORCH:
        half: HalfFormat = "fp16" if kind == "fp16" else "bf16"
        return half_pass(half, residual, gradient, np.empty(n, np.uint16), threads)
    block = int(kind.removeprefix("fp8 "))
    exponents = np.empty(blockwise.block_count(n, block), np.int8)
    return fp8_pass(residual, gradient, block, np.empty(n, np.uint8), exponents, threads)


MANY = 2**21 + 4321
"""More elements than a pass works on in one piece, twice over."""
LARGE_BLOCKS = [100, 1_500_000, 0]
"""Blocks of which a piece holds many, and blocks that are larger than a piece."""


def test_many_elements_are_cut_into_pieces() -> None:
    """Or the tests below that are about pieces would say nothing."""
    for block in LARGE_BLOCKS:
        pieces = blockwise.pieces(MANY, block)
        assert len(pieces) > 2
        assert fits_rows(MANY, block) == (block == 100)


@in_turn("kind", ["fp16", "bf16", "fp8 1", "fp8 512", "fp8 2048", "fp8 3000", "fp8 0"])
@in_turn("bad", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_sum_that_is_not_finite_is_not_taken_up(kind: str, bad: float) -> None:
    check_not_taken_up(5000, kind, bad, 4000)


@in_turn("kind", ["fp16", "bf16", *(f"fp8 {block}" for block in LARGE_BLOCKS)])
@in_turn(("bad", "place"), [(np.nan, 100), (-np.nan, 2**20), (np.inf, 1_600_000), (-np.inf, MANY - 1)])
def test_a_sum_that_is_not_finite_is_not_taken_up_in_any_piece(kind: str, bad: float, place: int) -> None:
    check_not_taken_up(MANY, kind, bad, place)


def check_not_taken_up(n: int, kind: str, bad: float, place: int) -> None:
    """To rounding, the residual gains every sum that is finite, and nothing elsewhere."""
    before, gradient = np.random.default_rng(1).standard_normal((2, n)).astype(F32)
    before[[11, 12, 13]] = np.nan, np.inf, MAX
    gradient[[13, place]] = MAX, bad
    one, three = before.copy(), before.copy()
    assert run_pass(kind, one, gradient, 1) == QuantizedPass(0.0, True)
    with np.errstate(over="ignore", invalid="ignore"):
        total = before + gradient
        off = np.abs(one - total)
    finite = np.isfinite(total)
    assert (off[finite] <= np.maximum(1e-6 * np.abs(total[finite]), 1e-6)).all()
    np.testing.assert_array_equal(one[~finite], before[~finite])
    assert run_pass(kind, three, gradient, 3).nonfinite
    assert (bits_of(three) == bits_of(one)).all()


@in_turn("kind", ["fp16", "bf16", "fp8 512", "fp8 0"])
def test_a_bad_sum_without_a_residual_is_told(kind: str) -> None:
    for bad in (np.nan, np.inf):
        gradient = np.ones(5000, F32)
        assert not run_pass(kind, None, gradient, 1).nonfinite
        gradient[4000] = bad
        assert run_pass(kind, None, gradient, 1).nonfinite


def test_threads_and_pieces_change_no_half() -> None:
    """Against torch's conversions, which know neither."""
    before, gradient = np.random.default_rng(2).standard_normal((2, MANY)).astype(F32)
    a = before + gradient
    for kind, dtype in TORCH.items():
        due = torch.from_numpy(a).to(dtype)
        kept = a - due.float().numpy()
        for threads in (1, 2, 3):
            residual, symbols, values = before.copy(), np.empty(MANY, np.uint16), np.empty(MANY, F32)
            assert not half_pass(kind, residual, gradient, symbols, threads).nonfinite
            write_amounts(kind, symbols, 0, (), values)
            assert symbols.tobytes() == due.view(torch.uint16).numpy().tobytes()
            assert values.tobytes() == due.float().numpy().tobytes()
            assert residual.tobytes() == kept.tobytes()


@in_turn("block", LARGE_BLOCKS)
def test_threads_and_pieces_change_no_fp8(block: int) -> None:
    """Against torch's conversion of blocks scaled so that their largest magnitude is just at most 448."""
    before, gradient = np.random.default_rng(2).standard_normal((2, MANY)).astype(F32)
    a = before + gradient
    starts = np.arange(0, MANY, block or MANY)
    largest = np.maximum.reduceat(np.abs(a), starts).astype(np.float64)
    due_exponents = np.ceil(np.log2(largest / 448)).astype(np.int8)
    assert (largest <= 448 * 2.0**due_exponents).all()
    assert (largest > 448 * 2.0 ** (due_exponents - 1)).all()
    scales = np.repeat((2.0**due_exponents).astype(F32), np.diff(np.append(starts, MANY)))
    due = torch.from_numpy(a / scales).to(torch.float8_e4m3fn)
    due_values = due.float().numpy() * scales
    for threads in (1, 2, 3):
        residual, symbols, values = before.copy(), np.empty(MANY, np.uint8), np.empty(MANY, F32)
        exponents = np.empty(starts.size, np.int8)
        assert not fp8_pass(residual, gradient, block, symbols, exponents, threads).nonfinite
        write_amounts("fp8", symbols, block, (exponents,), values)
        assert exponents.tolist() == due_exponents.tolist()
        assert symbols.tobytes() == due.view(torch.uint8).numpy().tobytes()
        assert values.tobytes() == due_values.tobytes()
        assert residual.tobytes() == (a - due_values).tobytes()
