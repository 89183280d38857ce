"""Statistical fits of SIDCo: closed forms against scipy's distributions, stages against exact quantiles."""

import math

import numpy as np
import pytest
import torch
from cases import in_turn
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from workbench import METHOD, part_of, policy_of

from taugrad.compressors.thresholds.base import Policy
from taugrad.compressors.thresholds.sidco import (
    LOOKS,
    Fit,
    FittedMemory,
    exponential,
    fitted_tau,
    gamma,
    most_stages,
    pareto,
)

FITS: list[Fit] = ["exponential", "pareto", "gamma"]
shares = st.floats(1e-4, 0.9)


@given(st.floats(1e-6, 1e6), shares)
def test_an_exponential_tail_is_scipys(mean: float, share: float) -> None:
    assert exponential(mean, share) == pytest.approx(stats.expon.isf(share, scale=mean), rel=1e-9)


@given(st.floats(-2, 0.45), st.floats(1e-3, 1e3), shares)
def test_a_pareto_tail_is_scipys_of_the_same_moments(shape: float, scale: float, share: float) -> None:
    of = stats.genpareto(shape, scale=scale)
    mean, variance = (float(moment) for moment in of.stats("mv"))
    assert pareto(mean, variance, share) == pytest.approx(of.isf(share), rel=1e-6)


@in_turn(("alpha", "off"), [(0.6, 0.25), (0.8, 0.1), (1.0, 0.01), (1.2, 0.1)])
@in_turn("share", [0.01, 0.001])
def test_a_gamma_tail_is_scipys_where_its_shape_is_about_1(alpha: float, off: float, share: float) -> None:
    of = stats.gamma(alpha, scale=0.3)
    mean_log = float(of.expect(np.log))
    tau, due = gamma(of.mean(), mean_log, share), of.isf(share)
    assert tau == pytest.approx(due, rel=off)
    if alpha != 1:  # the power of x that is left out is less than 1 below that, and more above
        assert (tau > due) == (alpha < 1)


def test_a_gamma_tail_is_the_papers_formula() -> None:
    mean, mean_log, share = 0.7, -1.1, 0.01
    q = math.log(mean) - mean_log
    alpha = (3 - q + math.sqrt((q - 3) ** 2 + 24 * q)) / (12 * q)
    due = -(mean / alpha) * (math.log(share) + math.log(math.gamma(alpha)))
    assert gamma(mean, mean_log, share) == pytest.approx(due, rel=1e-12)


@in_turn("mean", [1e-6, 1.0, 1e6])
def test_values_close_to_one_another_are_fitted_and_equal_ones_are_not(mean: float) -> None:
    """By the scale: a thousandth of the mean is a deviation, and rounding is none."""
    near = (mean * (1 + 1e-3 * np.random.default_rng(0).uniform(-1, 1, 4000))).astype(np.float32)
    exact = near.astype(np.float64)
    assert fitted_tau("exponential", near, 0.01, 1) == pytest.approx(
        exponential(exact.mean(), 0.01), rel=1e-9
    )
    due = pareto(exact.mean(), exact.var(), 0.01)
    assert fitted_tau("pareto", near, 0.01, 1) == pytest.approx(due, rel=1e-9)
    equal = np.full(4000, mean, np.float32)
    for fit in FITS:
        assert fitted_tau(fit, equal, 0.01, 1) == pytest.approx(mean, rel=1e-6)


def magnitudes_of(kind: str, n: int = 2**14) -> NDArray[np.float32]:
    rng = np.random.default_rng(1)
    values = {
        "exponential": lambda: rng.exponential(2e-3, n),
        "normal": lambda: np.abs(rng.standard_normal(n)),
        "cubed": lambda: np.abs(rng.standard_normal(n) ** 3),
        "pareto": lambda: rng.pareto(3, n),
    }[kind]()
    return np.asarray(values, np.float32)


@in_turn("fit", FITS)
@in_turn("kind", ["normal", "cubed", "pareto"])
@in_turn("density", [0.01, 0.001])
def test_stages_bring_any_fit_to_the_density(fit: Fit, kind: str, density: float) -> None:
    values = magnitudes_of(kind)
    reached = np.mean(values >= fitted_tau(fit, values, density, most_stages(density)))
    assert density / 2 < reached < density * 2
    once = np.mean(values >= fitted_tau(fit, values, density, 1))
    if fit == "exponential":  # one parameter cannot fit these tails
        assert abs(math.log(max(once, 1e-5) / density)) > abs(math.log(reached / density))


@in_turn("fit", FITS)
@in_turn("zeros", [0.0, 0.5, 0.95])
def test_zeros_count_as_elements(fit: Fit, zeros: float) -> None:
    values = magnitudes_of("exponential")
    values[np.random.default_rng(2).random(values.size) < zeros] = 0
    assert np.mean(values >= fitted_tau(fit, values, 0.01, 1)) == pytest.approx(0.01, rel=0.2)


@in_turn("fit", FITS)
@in_turn("stages", [1, 2, 5])
def test_a_fit_has_some_tau_whatever_the_sample(fit: Fit, stages: int) -> None:
    for values in ([], [0.0], [3.0], [2.0] * 50, [0.0] * 50 + [1.0], [1e-45] * 3, [3e38] * 20, [1.0, 3e38]):
        for density in (1e-9, 0.3, 1.0):
            tau = fitted_tau(fit, np.array(values, np.float32), density, stages)
            assert math.isfinite(tau)
            assert tau >= 0
    assert fitted_tau(fit, np.full(50, 2, np.float32), 0.1, stages) == pytest.approx(2.0)
    assert fitted_tau(fit, np.zeros(4000, np.float32), 0.01, stages) == 0


# The number of stages.


def run(policy: Policy, values: NDArray[np.float32], iterations: int) -> tuple[FittedMemory, list[float]]:
    """What is remembered, and the densities, where the same gradients come again and again."""
    memory, densities = FittedMemory(), []
    part = part_of(torch.from_numpy(values))
    for iteration in range(iterations):
        (tau,) = policy.taus([part], iteration, [memory], METHOD)
        sent = int((values >= tau).sum())
        densities.append(sent / values.size)
        policy.note([part], [sent], iteration, [memory])
    return memory, densities


@in_turn("kind", ["normal", "cubed", "pareto"])
def test_stages_are_found_by_the_achieved_density(kind: str) -> None:
    memory, densities = run(policy_of("sidco(0.001, every=1)"), magnitudes_of(kind), 12 * LOOKS)
    assert densities[-1] == pytest.approx(0.001, rel=0.35)
    assert abs(math.log(max(densities[0], 1e-5) / 0.001)) > math.log(1.35)
    assert 2 <= memory.stages <= 5


def test_stages_stay_where_the_density_is_met() -> None:
    memory, _ = run(policy_of("sidco(0.01, every=1)"), magnitudes_of("exponential"), 6 * LOOKS)
    assert memory.stages == 1


def test_a_number_of_stages_is_kept() -> None:
    values = magnitudes_of("cubed")
    memory, densities = run(policy_of("sidco(0.01, stages=3, every=1)"), values, 3 * LOOKS)
    assert set(densities) == {
        float(np.mean(values >= np.float32(fitted_tau("exponential", values, 0.01, 3))))
    }
    assert memory.stages == 1  # of `auto` alone
