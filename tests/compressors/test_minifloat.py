"""Short floating point formats: the kernels against torch's conversions and against exact arithmetic."""

from bisect import bisect
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from taugrad.compressors.kernels import blockwise
from taugrad.compressors.kernels.minifloat import (
    FP8_EXPONENTS,
    HalfFormat,
    fp8_pass,
    fp8_values,
    half_pass,
    half_values,
)

Floats = NDArray[np.float32]
F32 = np.float32
MAX = float(np.finfo(np.float32).max)
LARGEST: dict[HalfFormat, float] = {"fp16": 65504.0, "bf16": float(torch.finfo(torch.bfloat16).max)}
TORCH: dict[HalfFormat, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
halves = pytest.mark.parametrize("kind", ["fp16", "bf16"])


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
    assert half_pass(kind, None, a, symbols) == blockwise.QuantizedPass(0.0, False)
    expected = torch.from_numpy(a).clamp(-LARGEST[kind], LARGEST[kind]).to(TORCH[kind])
    assert (symbols == expected.view(torch.uint16).numpy()).all()
    half_values(kind, symbols, values, False)
    assert (bits_of(values) == bits_of(expected.float().numpy())).all()
    half_values(kind, symbols, values, True)
    assert (bits_of(values) == bits_of((expected.float() + expected.float()).numpy())).all()


@halves
def test_what_a_half_leaves_out_is_kept(kind: HalfFormat) -> None:
    rng = np.random.default_rng(1)
    residual, gradient = (rng.standard_normal((2, 10_001)) * 1e5).astype(F32)
    a = residual + gradient
    symbols, values = np.empty(a.size, np.uint16), np.empty(a.size, F32)
    report = half_pass(kind, residual, gradient, symbols)
    half_values(kind, symbols, values, False)
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
    fp8_values(symbols, 0, exponents, values, False)
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
    fp8_values(symbols, block, exponents, values, False)
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


def run_pass(kind: str, residual: Floats | None, gradient: Floats, threads: int) -> blockwise.QuantizedPass:
    """A pass whose symbols are of no interest; `fp8` and its block's length, or a half."""
    n = gradient.size
    if kind in TORCH:
        half: HalfFormat = "fp16" if kind == "fp16" else "bf16"
        return half_pass(half, residual, gradient, np.empty(n, np.uint16), threads)
    block = int(kind.removeprefix("fp8 "))
    exponents = np.empty(blockwise.block_count(n, block), np.int8)
    return fp8_pass(residual, gradient, block, np.empty(n, np.uint8), exponents, threads)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp8 1", "fp8 512", "fp8 2048", "fp8 3000", "fp8 0"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("most", [1 << 20, 2049])
def test_a_sum_that_is_not_finite_is_not_taken_up(
    kind: str, bad: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To rounding, the residual gains every sum that is finite, and nothing elsewhere."""
    monkeypatch.setattr(blockwise.pieces, "__defaults__", (most,))
    before, gradient = np.random.default_rng(1).standard_normal((2, 5000)).astype(F32)
    before[[11, 12, 13]] = np.nan, np.inf, MAX
    gradient[[13, 4000]] = MAX, bad
    one, three = before.copy(), before.copy()
    assert run_pass(kind, one, gradient, 1) == blockwise.QuantizedPass(0.0, True)
    with np.errstate(over="ignore"):
        total = before + gradient
    expected = np.where(np.isfinite(total), total, before)
    assert one == pytest.approx(expected, rel=1e-6, abs=1e-6, nan_ok=True)
    assert run_pass(kind, three, gradient, 3).nonfinite
    assert (bits_of(three) == bits_of(one)).all()


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp8 512", "fp8 0"])
def test_a_bad_sum_without_a_residual_is_told(kind: str) -> None:
    for bad in (np.nan, np.inf):
        gradient = np.ones(5000, F32)
        assert not run_pass(kind, None, gradient, 1).nonfinite
        gradient[4000] = bad
        assert run_pass(kind, None, gradient, 1).nonfinite


@pytest.mark.parametrize("block", [100, 2500, 0])
def test_threads_and_pieces_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    start, gradient = np.random.default_rng(2).standard_normal((2, 20_011)).astype(F32)
    blocks = blockwise.block_count(gradient.size, block)
    outcomes = []
    for most, threads in ((1 << 20, 1), (1 << 20, 2), (2049, 3), (2049, 1)):
        monkeypatch.setattr(blockwise.pieces, "__defaults__", (most,))
        residual, made = start.copy(), b""
        for kind in TORCH:
            half = np.empty(gradient.size, np.uint16)
            assert not half_pass(kind, residual, gradient, half, threads).nonfinite
            made += half.tobytes()
        symbols, exponents = np.empty(gradient.size, np.uint8), np.empty(blocks, np.int8)
        assert not fp8_pass(residual, gradient, block, symbols, exponents, threads).nonfinite
        values = np.empty(gradient.size, F32)
        fp8_values(symbols, block, exponents, values, False, threads)
        outcomes.append(made + b"".join(x.tobytes() for x in (residual, symbols, exponents, values)))
    assert outcomes == outcomes[:1] * 4
