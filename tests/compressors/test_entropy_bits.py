"""Bits per layer (Oland and Raj), the sample that they are chosen from, and weights as packages."""

import math

import numpy as np
import pytest
import workbench
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.methods.entropy import bits_of_sample, fixed_entropy, rms_bits, sample_size
from taugrad.compressors.ops.cpu.by_range import count_symbols
from taugrad.compressors.ops.uniform import positions_of


def transcribe(n: int, m: int) -> list[int]:
    """The sample's positions by the definition."""
    positions = []
    for i in range(m):
        low, high = i * n // m, (i + 1) * n // m
        h = i
        h ^= h >> 16
        h = h * 0x85EBCA6B % 2**32
        h ^= h >> 13
        h = h * 0xC2B2AE35 % 2**32
        h ^= h >> 16
        positions.append(low + h % (high - low))
    return positions


@settings(max_examples=100)
@given(n=st.integers(0, 2**32 - 1), m=st.integers(0, 500))
def test_positions_do_what_the_definition_says(n: int, m: int) -> None:
    m = min(n, m)
    result = stratified_positions(n, m)
    assert result.dtype == np.int64
    assert result.tolist() == transcribe(n, m)
    assert (np.diff(result) > 0).all()
    assert m == 0 or 0 <= result[0] <= result[-1] < n


def stratified_positions(n: int, m: int) -> np.ndarray:
    return positions_of(np.array([n]), np.array([m]))


@in_turn("width", [8, 10, 32, 64, 100, 128, 256, 1000])
def test_a_sample_does_not_fall_into_step_with_rows(width: int) -> None:
    """Places within a row are as even as chance has it: chi-squared within 6 of its deviations."""
    n = width * 10_000
    counts = np.bincount(stratified_positions(n, n // 30) % width, minlength=width)
    expected = n // 30 / width
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - (width - 1)) < 6 * math.sqrt(2 * (width - 1))


@settings(max_examples=200)
@given(st.lists(st.one_of(st.integers(0, 9), st.integers(0, 10**9)), min_size=1, max_size=40))
def test_entropy_is_shannons(counts: list[int]) -> None:
    total = max(sum(counts), 1)
    expected = -sum(h / total * math.log2(h / total) for h in counts if h)
    assert fixed_entropy(np.array(counts)) / 2**32 == pytest.approx(expected, abs=1e-8)


def bits_for(values: np.ndarray, fraction: float = 0.03, sample_bits: int = 4, floor: int = 6) -> int:
    size = sample_size(values.size, fraction)
    sample = values[stratified_positions(values.size, size)]
    return bits_of_sample(count_symbols(sample, sample_bits, values.min(), values.max()), floor)


def test_evenly_spread_values_get_m_more_bits_than_the_floor_and_equal_ones_none() -> None:
    spread = np.random.default_rng(0).random(100_000, dtype=np.float32)
    assert bits_for(spread) == 10
    assert bits_for(spread, sample_bits=6, floor=3) == 9
    assert bits_for(spread, floor=15) == 16
    assert bits_for(spread, floor=-9) == 1
    for value in (0.0, -0.0, 3.0, -1e-45):
        assert bits_for(np.full(1000, value, np.float32)) == 6


@settings(max_examples=200)
@given(rms=st.floats(0, 1e30), c0=st.floats(1e-6, 10), c1=st.one_of(st.integers(-20, 40), st.floats(-5, 20)))
def test_rms_bits_are_the_logarithm_rounded(rms: float, c0: float, c1: float) -> None:
    exact = math.log2(rms + c0) + c1
    near = {min(max(math.floor(exact + 0.5 + slip), 1), 16) for slip in (-1e-7, 1e-7)}
    assert rms_bits(rms, c0, c1) in near


@in_turn(("rms", "c0", "c1"), [(math.nan, 1, 1), (math.inf, 1, 1), (0, 0, 1), (0, -1, 1), (1, 1, math.inf)])
def test_rms_without_a_logarithm_is_refused(rms: float, c0: float, c1: float) -> None:
    with pytest.raises(ValueError, match="no finite value"):
        rms_bits(rms, c0, c1)


# Weights.

PAPERS_NET = ((784, 392), (392, 50), (50, 10))
"""Section 3: fully connected layers on MNIST."""


def test_a_layers_bits_are_its_entropy_and_the_floor() -> None:
    rng, weights = np.random.default_rng(1), []
    for inputs, outputs in PAPERS_NET:  # normal weights, and even biases
        layer = rng.standard_normal(inputs * outputs), rng.uniform(-1, 1, outputs)
        weights += [(weight / math.sqrt(inputs)).astype(np.float32) for weight in layer]
    for floor in (2, 5, 6):
        line = f"entropy(floor={floor}, fraction=1, decay=0)"
        ((update,),) = workbench.Worker(line, [weight.size for weight in weights]).step(weights).incoming
        for values, bits in zip(weights, update.bits, strict=True):
            flat = values.astype(np.float64)
            bins = np.minimum((flat - flat.min()) / (flat.max() - flat.min()) * 16, 15).astype(int)
            p = np.bincount(bins) / flat.size
            entropy = -sum(q * math.log2(q) for q in p if q > 0)
            assert abs(bits - (entropy + floor)) <= 0.5 + 1e-2
