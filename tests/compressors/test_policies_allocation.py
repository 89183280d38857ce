"""Allocation of tau to layers: against brute force, one tau for all, and what codecs write."""

import itertools
import math
from typing import Any

import messages
import numpy as np
import pytest
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from methods import METHODS
from numpy.typing import NDArray

from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.interface import ThresholdRule
from taugrad.compressors.thresholds.allocate import (
    CHOICES,
    REACH,
    Curves,
    allocate,
    bits_per_element,
    cheapest,
    curve_of,
    with_one_tau,
)
from taugrad.compressors.wire import message
from taugrad.compressors.wire.update import Update

Floats = NDArray[np.float64]
RULES: list[ThresholdRule] = ["wgt", "bgt", "qgt", "strom"]

# The program.


def total(of: Floats, chosen: NDArray[np.int64]) -> float:
    return math.fsum(of[np.arange(len(of)), chosen])


def least(cost: Floats, error: Floats, budget: float) -> float:
    """The least cost within the budget, of every combination."""
    combinations = itertools.product(range(cost.shape[1]), repeat=len(cost))
    chosen = (np.array(combination) for combination in combinations)
    return min(total(cost, choice) for choice in chosen if total(error, choice) <= budget)


tables = st.integers(1, 4).flatmap(
    lambda layers: st.integers(1, 4).flatmap(
        lambda choices: st.tuples(
            *2
            * [
                st.lists(
                    st.lists(st.floats(0, 100), min_size=choices, max_size=choices),
                    min_size=layers,
                    max_size=layers,
                )
            ]
        )
    )
)


@settings(max_examples=300)
@given(tables, st.data())
def test_any_table_is_solved_within_one_layers_range(
    table: tuple[list[list[float]], list[list[float]]], data: st.DataObject
) -> None:
    cost, error = (np.array(column) for column in table)
    given_choice = data.draw(st.integers(0, cost.shape[1] - 1))
    base = np.full(len(cost), given_choice)
    chosen = cheapest(cost, error, given_choice)
    assert total(error, chosen) <= total(error, base)
    assert total(cost, chosen) <= total(cost, base)
    optimum = least(cost, error, total(error, base))
    assert total(cost, chosen) <= optimum + np.ptp(cost, axis=1).max() * (1 + 1e-9)


# Curves.


@in_turn("rule", RULES)
@in_turn("density", [0.001, 0.05, 0.8])
def test_a_curve_is_what_passes_would_send_and_keep(rule: ThresholdRule, density: float) -> None:
    values = np.abs(np.random.default_rng(3).standard_normal(5000)).astype(np.float32)
    sent, taus, errors = curve_of(values, density, rule)
    assert len(sent) == len(taus) == len(errors) == CHOICES
    assert sent[0] == pytest.approx(density / REACH, abs=1 / 5000)
    assert sent[-1] == pytest.approx(min(density * REACH, 1), abs=1 / 5000)
    assert np.all(np.diff(sent) >= 0)
    assert np.all(np.diff(taus) <= 0)
    for share, tau, error in zip(sent, taus, errors, strict=True):
        reached = values >= tau
        assert share == pytest.approx(reached.mean())
        levels = np.minimum(np.floor(values / tau), 255) if rule == "qgt" else np.ones(values.size)
        quantum = values if rule == "wgt" else levels * tau
        kept = np.where(reached, values - quantum, values).astype(np.float64)
        due = float((kept**2).mean())
        if rule != "qgt" or values.max() < 2 * tau:
            assert error == pytest.approx(due, rel=1e-6, abs=1e-9)
        elif values.max() < 256 * tau:
            # What is kept of multiples is estimated: as if one tau were sent, or as if rests lay evenly below
            # tau, if that is less. Where larger magnitudes are rarer, rests are rather small than large, so
            # that neither says less than is kept. A normal's estimate says at most 16% more, near 0.7 of
            # its deviation.
            assert due <= error * (1 + 1e-9)
            assert error <= 1.16 * due
            evenly = float((np.where(reached, 0, values).astype(np.float64) ** 2).mean()) + share * tau**2 / 3
            assert error <= evenly * (1 + 1e-6)


@in_turn("rule", RULES)
@in_turn("values", [[0.0] * 9, [1.0], [2.0] * 7, [1e-45, 3e38], [0.0, 1.0]])
def test_any_sample_has_a_curve(rule: ThresholdRule, values: list[float]) -> None:
    sent, taus, errors = curve_of(np.array(values, np.float32), 0.01, rule)
    assert np.all(np.isfinite(taus) & (taus > 0) & np.isfinite(errors) & (errors >= 0) & (sent > 0))
    assert sent.max() <= 1


@in_turn("density", [0.0003, 0.001, 0.01, 0.05, 0.2, 0.5])
def test_bits_are_those_of_a_codec(density: float) -> None:
    n = 4_000_000
    words = (np.flatnonzero(np.random.default_rng(0).random(n) < density) << 1).astype(np.uint32)
    taus = np.full(1, 0.1, np.float32)
    update = Update("strom", messages.segments_of([n]), words, np.array([words.size]), taus=taus)
    written = len(messages.write(update)) - message.HEADER_BYTES - 4  # header and tau are not of the elements
    assert float(bits_per_element(np.array([density]), 1.0)[0]) == pytest.approx(8 * written / n, rel=0.06)


def test_a_value_takes_as_many_bits_as_its_message_has_for_it() -> None:
    for line, bits in METHODS.items():
        method: Any = read_config(line)
        if bits and hasattr(method, "tau") and method.kind != "qgt":  # whose levels are coded
            assert method.value_bits == bits, line


# All layers together.


def curves_of(
    layers: list[tuple[int, float, float]], density: float, rule: ThresholdRule, seed: int
) -> Curves:
    """Curves of layers with a number of elements, a scale, and a power that makes tails heavy."""
    rng = np.random.default_rng(seed)
    columns = [
        curve_of(
            (np.abs(rng.standard_normal(min(n, 2000))) ** power * scale).astype(np.float32), density, rule
        )
        for n, scale, power in layers
    ]
    sent, taus, errors = (np.array(column) for column in zip(*columns, strict=True))
    return Curves(np.array([float(n) for n, _, _ in layers]), sent, taus, errors)


layer_lists = st.lists(
    st.tuples(st.integers(1, 10**7), st.floats(-6, 3).map(lambda e: 10**e), st.floats(0.5, 4)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=150)
@given(layer_lists, st.floats(1e-4, 0.5), st.sampled_from(RULES), st.sampled_from([1.0, 4.0, 32.0]))
def test_an_allocation_is_never_worse_than_one_tau(
    layers: list[tuple[int, float, float]], density: float, rule: ThresholdRule, value_bits: float
) -> None:
    curves = curves_of(layers, density, rule, seed=len(layers))
    taus, sent = allocate(curves, density, value_bits)
    one = with_one_tau(curves, density)
    bits, squares = one.bits(value_bits), one.squares()
    rows = np.arange(len(layers))
    chosen = [int(np.flatnonzero((one.taus[i] == taus[i]) & (one.sent[i] == sent[i]))[-1]) for i in rows]
    assert math.fsum(bits[rows, chosen]) <= math.fsum(bits[:, -1])
    assert math.fsum(squares[rows, chosen]) <= math.fsum(squares[:, -1])


def test_one_tau_for_all_sends_the_density_of_all() -> None:
    layers = [(10_000, 1.0, 1.0), (50_000, 1.05, 1.0), (5_000, 0.97, 1.0)]
    one = with_one_tau(curves_of(layers, 0.01, "wgt", 0), 0.01)
    assert len(set(one.taus[:, -1])) == 1
    assert float((one.elements * one.sent[:, -1]).sum()) == pytest.approx(0.01 * one.elements.sum(), rel=1e-4)
