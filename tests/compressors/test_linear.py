"""Uniform bins: the kernels against the definition, number by number, and what the bins promise."""

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
from taugrad.compressors.ops.cpu.linear import (
    extremes,
    linear_pass,
    linear_tables_valid,
)
from taugrad.compressors.ops.cpu.linear_ranges import extremes_of_each, quantize_between
from taugrad.compressors.ops.interface import Addends
from taugrad.compressors.ops.results import QuantizedPass, Quantizing

Floats = NDArray[np.float32]
F32 = np.float32
MAX = float(np.finfo(np.float32).max)
SPECIALS = [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.1754944e-38, 3e-38, MAX / 2, -MAX / 2, 1e-3, 0.5]


@st.composite
def floats(draw: st.DrawFn, most: int = 70) -> Floats:
    """A few numbers of one kind: special ones, any at all, one repeated, or a bell."""
    n = draw(st.integers(0, most))
    kind = draw(st.sampled_from(["special", "any", "constant", "normal"]))
    if kind == "special":
        return np.array(draw(st.lists(st.sampled_from(SPECIALS), min_size=n, max_size=n)), F32)
    if kind == "constant":
        return np.full(n, draw(st.floats(-MAX / 2, MAX / 2, width=32)), F32)
    if kind == "any":
        return np.array(draw(st.lists(st.floats(-MAX / 2, MAX / 2, width=32), min_size=n, max_size=n)), F32)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return (rng.standard_normal(n) * draw(st.sampled_from([1e-40, 1e-5, 1.0, 1e30]))).astype(F32)


def transcribe(a: Floats, bits: int) -> tuple[list[int], F32, F32, list[F32]]:
    """One block by the definition: symbols, low, step and values."""
    low, high = min(a) + F32(0), max(a) + F32(0)
    step = F32(high * F32(2.0**-bits)) - F32(low * F32(2.0**-bits))
    step = step if step >= F32(2.0**-126) else F32(0)
    symbols, values = [], []
    for x in a:
        symbol = 0
        if step > 0:
            place = F32(F32(x * F32(0.5)) - F32(low * F32(0.5))) * F32(F32(2) / step)
            symbol = min(int(place), 2**bits - 1)
        half = F32(low * F32(0.5)) + F32(F32(step * F32(0.5)) * F32(symbol + F32(0.5)))
        symbols.append(symbol)
        values.append(half + half)
    return symbols, low, step, values


def transcribe_all(a: Floats, bits: int, block: int) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """`transcribe` for many and for large blocks, in the same steps."""
    starts = np.arange(0, a.size, block or a.size)
    lows, highs = np.minimum.reduceat(a, starts) + F32(0), np.maximum.reduceat(a, starts) + F32(0)
    steps = highs * F32(2.0**-bits) - lows * F32(2.0**-bits)
    assert (steps >= F32(2.0**-126)).all()
    sizes = np.diff(np.append(starts, a.size))
    low, step = np.repeat(lows, sizes), np.repeat(steps, sizes)
    places = (a * F32(0.5) - low * F32(0.5)) * (F32(2) / step)
    symbols = np.minimum(places.astype(np.int64), 2**bits - 1)
    halves = low * F32(0.5) + step * F32(0.5) * (symbols.astype(F32) + F32(0.5))
    return symbols, lows, steps, halves + halves


MANY = 2**21 + 4321
"""More elements than a pass works on in one piece, twice over."""
LARGE_BLOCKS = [3, 2048, 1_500_000, 0]
"""Blocks of which a piece holds many, and blocks that are larger than a piece."""


def test_many_elements_are_cut_into_pieces() -> None:
    """Or the tests below that are about pieces would say nothing."""
    for block in LARGE_BLOCKS:
        pieces = blockwise.pieces(MANY, block)
        assert len(pieces) > 2
        assert fits_rows(MANY, block) == (block in (3, 2048))


def quantized(
    residual: Floats | None, gradient: Floats, bits: int, block: int, threads: int = 1
) -> tuple[NDArray[np.generic], Floats, Floats, Floats, QuantizedPass]:
    """Symbols, lows, steps, values and the report of a pass over fenced symbols."""
    n, blocks = gradient.size, blockwise.block_count(gradient.size, block)
    fenced = np.full(n + 2, 0xA5, np.uint8 if bits <= 8 else np.uint16)
    lows, steps, values = np.empty(blocks, F32), np.empty(blocks, F32), np.empty(n, F32)
    report = linear_pass(residual, gradient, bits, block, fenced[1 : n + 1], lows, steps, threads)
    assert fenced[0] == fenced[-1] == 0xA5
    if not report.nonfinite:
        write_amounts("linear", fenced[1 : n + 1], block, (lows, steps), values)
    return fenced[1 : n + 1], lows, steps, values, report


def bits_of(values: Floats | list[F32]) -> list[int]:
    listed: list[int] = np.asarray(values, F32).view(np.uint32).tolist()
    return listed


@settings(max_examples=300, deadline=None)
@given(gradient=floats(), bits=st.integers(1, 16), block=st.integers(0, 80), data=st.data())
def test_the_pass_does_what_the_definition_says(
    gradient: Floats, bits: int, block: int, data: st.DataObject
) -> None:
    residual = None
    if data.draw(st.booleans()):
        numbers = st.floats(-MAX / 2, MAX / 2, width=32)
        residual = np.array([data.draw(st.one_of(st.just(0.0), numbers)) for _ in gradient], F32)
    a = gradient.copy() if residual is None else residual + gradient
    kept = None if residual is None else residual.copy()
    symbols, lows, steps, values, report = quantized(kept, gradient, bits, block)

    length = block or max(gradient.size, 1)
    assert len(lows) == -(-gradient.size // min(length, max(gradient.size, 1)))
    for b, first in enumerate(range(0, a.size, length)):
        at = slice(first, first + length)
        expected = transcribe(a[at], bits)
        assert symbols[at].tolist() == expected[0]
        assert bits_of(lows[b : b + 1]) == bits_of([expected[1]])
        assert bits_of(steps[b : b + 1]) == bits_of([expected[2]])
        assert bits_of(values[at]) == bits_of(expected[3])
    assert not report.nonfinite
    assert np.isfinite(values).all()
    assert linear_tables_valid(np.full(lows.size, bits), lows, steps)
    if kept is None:
        assert report.residual_squares == 0.0
    else:
        assert bits_of(kept) == bits_of(a - values)
        squares = np.square(kept, dtype=np.float64).sum()
        assert report.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-300)


@settings(max_examples=100, deadline=None)
@given(a=floats(), bits=st.integers(1, 16), block=st.integers(0, 80))
def test_no_element_is_further_from_its_value_than_half_a_bin(a: Floats, bits: int, block: int) -> None:
    _, _, steps, values, _ = quantized(None, a, bits, block)
    length = block or max(a.size, 1)
    for b, first in enumerate(range(0, a.size, length)):
        x, v = a[first : first + length].astype(np.float64), values[first : first + length]
        # Beside the half bin: rounding, and in a block without bins all of its width.
        slack = 2.0**-22 * max(np.abs(x).max(), 2.0**bits * steps[b]) + 2.0 ** (bits - 126) * (steps[b] == 0)
        assert np.abs(x - v).max() <= 0.5 * steps[b] + slack


def test_bin_centres_by_hand() -> None:
    """0 to 4 in two bits: bins of width 1 whose centres are 0.5, 1.5, 2.5 and 3.5."""
    gradient = np.array([0, 0.99, 1, 2.5, 3.999, 4], F32)
    residual = np.zeros(6, F32)
    symbols, lows, steps, values, _ = quantized(residual, gradient, 2, 0)
    assert symbols.tolist() == [0, 0, 1, 2, 3, 3]
    assert (lows.tolist(), steps.tolist()) == ([0.0], [1.0])
    assert values.tolist() == [0.5, 0.5, 1.5, 2.5, 3.5, 3.5]
    assert residual.tolist() == (gradient - values).tolist()


def test_values_are_added() -> None:
    a = np.linspace(-1, 1, 5000, dtype=F32)
    symbols, lows, steps, values, _ = quantized(None, a, 5, 700)
    out = a.copy()
    write_amounts("linear", symbols, 700, (lows, steps), out, add=True)
    assert bits_of(out) == bits_of(a + values)


def assert_taken_up(residual: Floats, before: Floats, gradient: Floats) -> None:
    """To rounding, the residual gained every finite sum; elsewhere not a bit changed."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = before + gradient
    finite = np.isfinite(total)
    off = np.abs(residual[finite] - total[finite])
    assert (off <= np.maximum(1e-6 * np.abs(total[finite]), 1e-6)).all()
    assert residual[~finite].tobytes() == before[~finite].tobytes()


@in_turn("block", [1, 100, 2048, 3000, 0])
@in_turn("bad", [np.nan, -np.nan, np.inf, -np.inf])
@in_turn("place", [0, 3000, 4999])
def test_a_sum_that_is_not_finite_is_not_taken_up(block: int, bad: float, place: int) -> None:
    check_not_taken_up(5000, block, bad, place)


@in_turn("block", LARGE_BLOCKS)
@in_turn(("bad", "place"), [(np.nan, 0), (-np.nan, 2**20), (np.inf, 1_600_000), (-np.inf, MANY - 1)])
def test_a_sum_that_is_not_finite_is_not_taken_up_in_any_piece(block: int, bad: float, place: int) -> None:
    check_not_taken_up(MANY, block, bad, place)


def check_not_taken_up(n: int, block: int, bad: float, place: int) -> None:
    before, gradient = np.random.default_rng(1).standard_normal((2, n)).astype(F32)
    gradient[place] = bad
    one, three = before.copy(), before.copy()
    assert quantized(one, gradient, 8, block)[-1] == QuantizedPass(0.0, True)
    assert_taken_up(one, before, gradient)
    assert quantized(three, gradient, 8, block, threads=3)[-1].nonfinite
    assert three.tobytes() == one.tobytes()
    ranged = before.copy()
    assert extremes(ranged, gradient, block).nonfinite
    with np.errstate(invalid="ignore"):
        total = before + gradient
    assert ranged.tobytes() == np.where(np.isfinite(total), total, before).tobytes()


@in_turn("block", [100, 0])
def test_a_residual_that_is_not_finite_stays_so(block: int) -> None:
    before, gradient = np.random.default_rng(3).standard_normal((2, 5000)).astype(F32)
    before[[7, 1234, 4000]] = np.nan, np.inf, MAX
    gradient[4000] = MAX
    residual = before.copy()
    assert quantized(residual, gradient, 8, block)[-1].nonfinite
    assert_taken_up(residual, before, gradient)


def test_a_sum_that_overflows_is_not_finite() -> None:
    huge = np.full(3, MAX, F32)
    assert quantized(huge.copy(), huge, 8, 0)[-1].nonfinite


@in_turn("threads", [1, 3])
@in_turn("keeps", [True, False])
def test_ranges_of_many_layers_are_found_and_gone_by_in_one_call(threads: int, keeps: bool) -> None:
    rng, sizes = np.random.default_rng(4), [5000, 1, 2**20 + 77, 300]
    gradients = [rng.standard_normal(n).astype(F32) for n in sizes]
    residuals = [rng.standard_normal(n).astype(F32) if keeps else None for n in sizes]
    alone = [None if each is None else each.copy() for each in residuals]
    tensors = [None if each is None else torch.from_numpy(each) for each in residuals]
    given = [torch.from_numpy(each) for each in gradients]
    ranges = extremes_of_each([*map(Addends, tensors, given)], threads)
    work = Quantizing(tensors, given, np.empty(0, np.uint8), 8)
    symbols = np.empty(work.offsets.all_symbols, np.uint8)
    lows, steps = (np.empty(work.offsets.all_blocks, F32) for _ in range(2))
    passed = quantize_between(work._replace(symbols=symbols), [8] * 4, ranges, lows, steps, threads)
    for i, (kept, added) in enumerate(zip(alone, gradients, strict=True)):
        total = added if kept is None else kept + added
        assert (ranges[i].lows[0], ranges[i].highs[0]) == (total.min(), total.max())
        own, low, step = np.empty(added.size, np.uint8), np.empty(1, F32), np.empty(1, F32)
        expected = linear_pass(kept, added, 8, 0, own, low, step)
        at, table = work.offsets.symbols[i], work.offsets.tables[i]
        assert symbols[at].tobytes() == own.tobytes()
        assert (lows[table], steps[table]) == (low, step)
        assert passed[i].residual_squares == pytest.approx(expected.residual_squares, rel=1e-5)
        there = residuals[i]
        assert there is None or (kept is not None and there.tobytes() == kept.tobytes())


@in_turn("bad", [np.nan, np.inf])
def test_a_bad_sum_without_a_residual_is_told(bad: float) -> None:
    gradient = np.ones(5000, F32)
    gradient[4000] = bad
    assert quantized(None, gradient, 8, 100)[-1].nonfinite
    assert quantized(None, gradient, 8, 0)[-1].nonfinite


@in_turn("block", LARGE_BLOCKS)
def test_threads_and_pieces_change_nothing(block: int) -> None:
    """Against the definition, which knows neither."""
    before, gradient = np.random.default_rng(2).standard_normal((2, MANY)).astype(F32)
    a = before + gradient
    due = transcribe_all(a, 8, block)
    reports = []
    for threads in (1, 2, 3):
        residual = before.copy()
        symbols, lows, steps, values, report = quantized(residual, gradient, 8, block, threads)
        assert (symbols == due[0]).all()
        for found, expected in zip((lows, steps, values, residual), (*due[1:], a - due[3]), strict=True):
            assert found.tobytes() == expected.tobytes()
        reports.append(report)
    assert reports[0] == reports[1] == reports[2]  # not a bit's difference
    # Squares are summed in float32 over up to 8192 elements, in an order that the compiler may choose: 8192
    # terms may round by 8192 * 2^-24 = 5e-4, and in partial sums by far less.
    squares = np.square(a - due[3], dtype=np.float64).sum()
    assert reports[0].residual_squares == pytest.approx(squares, rel=1e-4)


@given(n=st.integers(0, 300), block=st.integers(0, 320), most=st.integers(1, 50))
def test_pieces_cover_every_element_once(n: int, block: int, most: int) -> None:
    parts = blockwise.pieces(n, block, most)
    length = blockwise.block_length(n, block)
    owners = [
        piece.blocks.start + i // piece.block
        for piece in parts
        for i in range(piece.elements.stop - piece.elements.start)
    ]
    assert owners == [i // length for i in range(n)]
    assert [i for piece in parts for i in range(n)[piece.elements]] == list(range(n))
    assert all(piece.elements.stop - piece.elements.start <= most for piece in parts)


@in_turn(
    ("low", "step"),
    [
        (np.nan, 1.0),
        (np.inf, 1.0),
        (-0.0, 1.0),
        (0.0, -1.0),
        (0.0, -0.0),
        (0.0, 1e-39),
        (0.0, np.nan),
        (0.0, np.inf),
        (MAX, 1e36),
    ],
)
def test_tables_that_no_pass_writes_are_told(low: float, step: float) -> None:
    good = np.array([-1.0, 0.0], F32), np.array([0.01, 0.0], F32)
    assert linear_tables_valid(np.full(good[0].size, 8), *good)
    good[0][1], good[1][1] = low, step
    assert not linear_tables_valid(np.full(good[0].size, 8), *good)


BITS = st.integers(0, 2**32 - 1) | st.sampled_from(
    [0, 1, 0x007FFFFF, 0x00800000, 0x7E800000, 0x7F000000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000]
).flatmap(lambda word: st.sampled_from([word, word | 0x80000000]))
"""Of a float32: any, or at an edge, with either sign."""


@given(st.integers(1, 16), st.lists(st.tuples(BITS, BITS), max_size=3))
@settings(max_examples=300, deadline=None)
def test_tables_are_valid_where_each_step_and_low_and_highest_value_is(
    bits: int, words: list[tuple[int, int]]
) -> None:
    table = np.array(words, np.uint32).reshape(-1, 2).view(F32)
    with np.errstate(all="ignore"):
        expected = all(
            (step >= F32(2.0**-126) or (step == 0 and not np.signbit(step)))
            and np.isfinite(low)
            and not (low == 0 and np.signbit(low))
            and np.isfinite(F32(2) * (low / F32(2) + step / F32(2) * F32(2**bits - 0.5)))
            for low, step in table
        )
    assert linear_tables_valid(np.full(len(table), bits), *np.ascontiguousarray(table.T)) == expected
