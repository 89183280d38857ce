"""A setting's best value: smoothing against its formula, and choices made by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.search.law.best import best_value, smoothed
from taugrad.search.law.past import PastRun, Setting
from taugrad.search.objective import Outcome

Run = tuple[float, float, float]
"""A value, an accuracy and bytes."""


def setting(runs: list[Run], baselines: tuple[float, ...] = ()) -> Setting:
    return Setting(
        params={},
        around="",
        runs=[
            PastRun(value, Outcome(accuracy, sent), f"{i}") for i, (value, accuracy, sent) in enumerate(runs)
        ],
        baselines=[Outcome(accuracy, 1e9) for accuracy in baselines],
    )


@given(
    st.lists(st.tuples(st.floats(-10, 10), st.floats(0, 1)), min_size=1, max_size=12),
    st.floats(0.05, 5),
)
def test_a_smoothed_value_is_a_mean_weighted_by_a_normal_density(pairs, width):
    places, values = [place for place, _ in pairs], [value for _, value in pairs]
    for here, found in zip(places, smoothed(places, values, width), strict=True):
        density = [math.exp(-((there - here) ** 2) / (2 * width**2)) for there in places]
        mean = sum(each * value for each, value in zip(density, values, strict=True)) / sum(density)
        assert found == pytest.approx(mean, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tolerance", [2.0, 4.0, 8.0])
def test_on_a_noisy_plateau_with_a_drop_the_edge_within_the_tolerance_is_chosen(seed, tolerance):
    rng = np.random.default_rng(seed)

    def accuracy(tau: float) -> float:
        return 0.95 - 0.15 * max(0.0, math.log10(tau))  # level up to 1, then 15 points a decade

    taus = np.geomspace(1e-3, 100, 60).tolist()
    runs = [(tau, accuracy(tau) + rng.normal(0, 0.004), 1e6 / tau) for tau in taus]
    best = best_value(setting(runs, baselines=(0.94, 0.96)), "strom", tolerance)
    edge = 10 ** (tolerance / 15)
    # Smoothing is as wide as a factor of 1.5, and rounds the edge off.
    assert edge / 1.6 < best < edge * 1.6
    assert 100 * (0.95 - accuracy(best)) <= tolerance + 1.5


def test_a_lucky_run_among_bad_ones_is_not_believed():
    bad = [(tau, 0.5, 10 / tau) for tau in (8.0, 9.0, 11.0, 12.0)]
    runs = [(1.0, 0.9, 10.0), *bad, (10.0, 0.9, 1.0)]
    assert best_value(setting(runs, baselines=(0.9,)), "strom", 2) == 1.0


def test_without_baselines_the_best_of_the_runs_counts():
    runs = [(1e-3, 0.90, 5.0), (1.0, 0.89, 3.0), (1e3, 0.80, 1.0)]
    assert best_value(setting(runs), "strom", 2) == 1.0
    assert best_value(setting(runs), "strom", 11) == 1e3
    assert best_value(setting(runs), "strom", 0) == 1e-3
