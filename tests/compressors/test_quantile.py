"""Bins of equal population: the kernels against the definition, number by number, and Rae's example."""

import math
from fractions import Fraction

import numpy as np
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import write_amounts
from numpy.typing import NDArray

from taugrad.compressors.ops.cpu import blockwise
from taugrad.compressors.ops.cpu.quantile import (
    LARGEST_MEAN,
    quantile_pass,
    quantile_tables_valid,
)
from taugrad.compressors.ops.results import QuantizedPass

Floats = NDArray[np.float32]
F32 = np.float32
MAX = float(np.finfo(np.float32).max)
SPECIALS = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-40, 1.1754944e-38, 3e-38, MAX, -MAX, 1e-3, 2.0**127]


@st.composite
def floats(draw: st.DrawFn, most: int = 70) -> Floats:
    """A few finite numbers of one kind: special ones, any at all, one repeated, few levels, or a bell."""
    n = draw(st.integers(0, most))
    kind = draw(st.sampled_from(["special", "any", "constant", "ties", "normal"]))
    if kind == "special":
        return np.array(draw(st.lists(st.sampled_from(SPECIALS), min_size=n, max_size=n)), F32)
    if kind == "constant":
        return np.full(n, draw(st.floats(-MAX, MAX, width=32)), F32)
    if kind == "any":
        return np.array(draw(st.lists(st.floats(-MAX, MAX, width=32), min_size=n, max_size=n)), F32)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "ties":
        return rng.integers(-2, 3, n).astype(F32)
    return (rng.standard_normal(n) * draw(st.sampled_from([1e-40, 1e-5, 1.0, 1e30]))).astype(F32)


def transcribe(a: Floats, bits: int) -> tuple[list[int], list[int], int, list[F32]]:
    """One block by the definition: symbols, the table's bits, the exponent and the elements' values."""
    size, bins = a.size, 2**bits
    ordered = sorted(a.tolist())
    cuts = [ordered[j * size // bins] for j in range(1, bins)]
    symbols = [sum(cut <= x for cut in cuts) for x in a.tolist()]
    largest = max(abs(x) for x in ordered)
    exponent = max(math.frexp(largest)[1] - 1 - 14, -128) if largest else 0
    fraction = 47 - math.ceil(math.log2(size))
    means = np.zeros(bins, np.float16)
    for j in set(symbols):
        inside = [x for x, symbol in zip(a.tolist(), symbols, strict=True) if symbol == j]
        total = sum(int(Fraction(x) * Fraction(2) ** (fraction - exponent)) for x in inside)
        mean = np.float64(total) / np.float64(len(inside)) * 2.0**-fraction
        means[j] = max(min(F32(mean), F32(32752)), F32(-32752))
    values = [F32(math.ldexp(float(means[symbol]), exponent)) for symbol in symbols]
    return symbols, means.view(np.uint16).tolist(), exponent, values


def quantized(
    residual: Floats | None, gradient: Floats, bits: int, block: int, threads: int = 1
) -> tuple[NDArray[np.generic], NDArray[np.uint16], NDArray[np.int8], Floats, QuantizedPass]:
    """Symbols, tables, exponents, values and the report of a pass over fenced symbols."""
    n, blocks = gradient.size, blockwise.block_count(gradient.size, block)
    fenced = np.full(n + 2, 0xA5, np.uint8 if bits <= 8 else np.uint16)
    tables = np.empty((blocks, 1 << bits), np.uint16)
    exponents, values = np.empty(blocks, np.int8), np.empty(n, F32)
    symbols = fenced[1 : n + 1]
    report = quantile_pass(residual, gradient, bits, block, symbols, tables, exponents, threads)
    assert fenced[0] == fenced[-1] == 0xA5
    if not report.nonfinite:
        write_amounts("quantile", symbols, block, (exponents, tables), values)
    return symbols, tables, exponents, values, report


def bits_of(values: Floats | list[F32]) -> list[int]:
    listed: list[int] = np.asarray(values, F32).view(np.uint32).tolist()
    return listed


@settings(max_examples=300, deadline=None)
@given(gradient=floats(), bits=st.integers(1, 10), block=st.integers(0, 80), zeros=st.booleans())
def test_the_pass_does_what_the_definition_says(gradient: Floats, bits: int, block: int, zeros: bool) -> None:
    a = gradient + F32(0) if zeros else gradient
    kept = np.zeros_like(gradient) if zeros else None
    symbols, tables, exponents, values, report = quantized(kept, gradient, bits, block)

    length = block or max(gradient.size, 1)
    for b, first in enumerate(range(0, a.size, length)):
        at = slice(first, first + length)
        expected = transcribe(a[at], bits)
        assert symbols[at].tolist() == expected[0]
        assert tables[b].tolist() == expected[1]
        assert exponents[b] == expected[2]
        assert bits_of(values[at]) == bits_of(expected[3])
    assert not report.nonfinite
    assert np.isfinite(values).all()
    assert quantile_tables_valid(tables, exponents)
    if kept is None:
        assert report.residual_squares == 0.0
    else:
        with np.errstate(over="ignore"):
            assert bits_of(kept) == bits_of(np.clip(a - values, -MAX, MAX))
        squares = np.square(kept, dtype=np.float64).sum()
        assert report.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-300)


@in_turn("bits", [11, 12, 13, 16])
def test_many_bins(bits: int) -> None:
    a = np.random.default_rng(bits).standard_normal(3001).astype(F32)
    a[:500] = a[500]
    symbols, tables, exponents, values, _ = quantized(None, a, bits, 0)
    ordered = np.sort(a)
    cuts = ordered[np.arange(1, 2**bits) * a.size // 2**bits]
    assert symbols.tolist() == np.searchsorted(cuts, a, side="right").tolist()
    counts = np.bincount(symbols, minlength=2**bits)
    means = np.bincount(symbols, a.astype(np.float64), 2**bits) / np.maximum(counts, 1)
    found = tables[0].view(np.float16).astype(np.float64) * 2.0 ** exponents[0]
    assert found == pytest.approx(means, rel=2**-11, abs=2.0**-38)
    assert bits_of(values) == bits_of(found[symbols].astype(F32))


def test_equal_populations_as_in_the_paper() -> None:
    """Rae puts 200 gradients into 10 bins of 20; with 4 bits, 256 make 16 bins of 16, of mean 16 j + 7.5."""
    gradient = np.random.default_rng(0).permutation(256).astype(F32)
    residual = np.zeros(256, F32)
    symbols, tables, exponents, values, _ = quantized(residual, gradient, 4, 0)
    assert np.bincount(symbols).tolist() == [16] * 16
    assert exponents.tolist() == [-7]  # the largest is 255, so 2^7 is to become 2^14
    assert (tables[0].view(np.float16) * 2.0**-7).tolist() == [16 * j + 7.5 for j in range(16)]
    assert values.tolist() == [16 * (x // 16) + 7.5 for x in gradient.tolist()]
    assert residual.tolist() == (gradient - values).tolist()


def test_golden_table() -> None:
    """Two bins of two: -3 and -1, 1 and 3. The largest, 3, gives e = 1 - 14 = -13; +-2 2^13 is +-2^14,
    whose float16 has the exponent 14 + 15 = 29 = 0b11101: 0x7400, and 0xF400 with the sign."""
    symbols, tables, exponents, values, _ = quantized(None, np.array([3, -1, 1, -3], F32), 1, 0)
    assert symbols.tolist() == [1, 0, 1, 0]
    assert tables.tolist() == [[0xF400, 0x7400]]
    assert exponents.tolist() == [-13]
    assert values.tolist() == [2, -2, 2, -2]


def test_a_mean_is_the_best_value_of_its_bin() -> None:
    a = np.random.default_rng(3).standard_normal(4096).astype(F32)
    residual = a.copy()
    symbols, *_ = quantized(residual, np.zeros_like(a), 8, 2048)
    for block in (slice(0, 2048), slice(2048, 4096)):
        assert np.bincount(symbols[block], minlength=256).tolist() == [8] * 256
        sums = np.bincount(symbols[block], residual[block].astype(np.float64), 256)
        bound = 8 * 2.0**-11 * np.bincount(symbols[block], np.abs(a[block]), 256) / 8
        assert (np.abs(sums) <= bound + 1e-6).all()


def test_values_are_added() -> None:
    a = np.linspace(-1, 1, 5000, dtype=F32)
    symbols, tables, exponents, values, _ = quantized(None, a, 5, 700)
    out = a.copy()
    write_amounts("quantile", symbols, 700, (exponents, tables), out, add=True)
    assert bits_of(out) == bits_of(a + values)


@in_turn("block", [1, 100, 2048, 0])
@in_turn("bad", [np.nan, -np.nan, np.inf, -np.inf])
@in_turn("place", [0, 4999])
def test_a_sum_that_is_not_finite_is_not_taken_up(block: int, bad: float, place: int) -> None:
    residual, gradient = np.random.default_rng(1).standard_normal((2, 5000)).astype(F32)
    gradient[place] = bad
    total = residual + gradient
    expected = np.where(np.isfinite(total), total, residual)
    assert quantized(residual, gradient, 4, block)[-1] == QuantizedPass(0.0, True)
    assert bits_of(residual) == bits_of(expected)


MANY = 2**21 + 4321
"""More elements than a pass works on in one piece, twice over."""


def transcribe_all(a: Floats, bits: int, block: int) -> list[tuple[NDArray[np.int64], Floats, int]]:
    """`transcribe` for large blocks, in the same steps: by block, symbols, means and the exponent."""
    made, bins = [], 2**bits
    for first in range(0, a.size, block or a.size):
        x = a[first : first + (block or a.size)]
        symbols = np.searchsorted(np.sort(x)[np.arange(1, bins) * x.size // bins], x, side="right")
        exponent = max(math.frexp(float(np.abs(x).max()))[1] - 1 - 14, -128)
        fraction = 47 - math.ceil(math.log2(x.size))
        totals, counts = np.zeros(bins, np.int64), np.bincount(symbols, minlength=bins)
        np.add.at(totals, symbols, np.ldexp(x.astype(np.float64), fraction - exponent).astype(np.int64))
        means = (totals / np.maximum(counts, 1) * 2.0**-fraction).astype(F32).clip(-32752, 32752)
        made.append((symbols, np.where(counts, means, 0).astype(np.float16), exponent))
    return made


@in_turn("block", [300, 2048, 100_000, 1_500_000, 0])
def test_threads_and_pieces_change_nothing(block: int) -> None:
    """Against the definition, which knows neither, up to blocks that are larger than a piece."""
    assert len(blockwise.pieces(MANY, block)) > 2
    before, gradient = np.random.default_rng(2).standard_normal((2, MANY)).astype(F32)
    before[5000:9000] = 0
    gradient[5000:9000] = gradient[5000]
    a = before + gradient
    due = transcribe_all(a, 8, block)
    values = np.concatenate(
        [np.ldexp(means[symbols].astype(F32), exponent) for symbols, means, exponent in due]
    )
    reports = []
    for threads in (1, 2, 3):
        residual = before.copy()
        found = quantized(residual, gradient, 8, block, threads)
        assert (found[0] == np.concatenate([symbols for symbols, _, _ in due])).all()
        assert found[1].tobytes() == b"".join(means.tobytes() for _, means, _ in due)
        assert found[2].tolist() == [exponent for _, _, exponent in due]
        assert found[3].tobytes() == values.tobytes()
        assert residual.tobytes() == (a - values).tobytes()
        reports.append(found[4])
    assert reports[0] == reports[1] == reports[2]  # not a bit's difference
    # Squares are summed in float32 over up to 8192 elements, in an order that the compiler may choose: 8192
    # terms may round by 8192 * 2^-24 = 5e-4, and in partial sums by far less.
    squares = np.square(a - values, dtype=np.float64).sum()
    assert reports[0].residual_squares == pytest.approx(squares, rel=1e-4)


def test_tables_that_no_pass_writes_are_told() -> None:
    tables, exponents = np.array([[LARGEST_MEAN, 0x8000 | LARGEST_MEAN]], np.uint16), np.array([113], np.int8)
    assert quantile_tables_valid(tables, exponents)
    assert not quantile_tables_valid(tables + np.uint16(1), exponents)
    assert not quantile_tables_valid(tables, exponents + np.int8(1))
    assert not quantile_tables_valid(np.array([[0, 0xFFFF]], np.uint16), exponents)
    assert quantile_tables_valid(np.empty((0, 4), np.uint16), np.empty(0, np.int8))
