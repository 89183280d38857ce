"""Seeds taken together, and what is claimed: by scipy, by a simulation, and of runs that fool a naive eye."""

import re
from dataclasses import replace

import numpy as np
import pytest
from mlflow_data import made_up
from numpy.typing import NDArray
from scipy import stats

from taugrad.dashboards import statements, verdict
from taugrad.dashboards.groups import by_setting, estimate
from taugrad.dashboards.method_table import change_cell, columns
from taugrad.dashboards.runs import RunHistory
from taugrad.platform.tasks.claims import CONFIDENCE, Difference, difference, interval, wilson
from taugrad.platform.tasks.metric import ACCURACY, LOSS

EXAMPLES = 1000


def by_seed(values: NDArray[np.float64]) -> dict[str, float]:
    return {str(seed): float(value) for seed, value in enumerate(values)}


def change_of(runs: list[RunHistory]) -> Difference:
    (compressed,) = (group for group in by_setting(runs) if not group.is_baseline)
    (reference,) = (group for group in by_setting(runs) if group.is_baseline)
    return verdict.change(compressed, reference)


# The formula


def test_seeds_have_students_interval():
    # Mean 5, standard deviation 2.16, n = 4: t(0.975, 3) = 3.182446.
    got = estimate([3.0, 4.0, 5.0, 8.0])
    assert (got.mean, got.count) == (5, 4)
    assert got.spread == pytest.approx(3.182446 * ((4 + 1 + 0 + 9) / 3) ** 0.5 / 2, rel=1e-6)


@pytest.mark.parametrize("hits", [0, 7, 500, 975, 1000])
def test_the_interval_of_a_share_is_wilsons(hits):
    expected = stats.binomtest(hits, EXAMPLES).proportion_ci(CONFIDENCE, method="wilson")
    assert wilson(hits / EXAMPLES, EXAMPLES) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("metric", [ACCURACY, LOSS])
def test_seeds_alone_are_students_t_of_the_pairs(metric):
    """A loss has no interval of its examples; an accuracy's is nothing where they are so many."""
    rng = np.random.default_rng(5)
    theirs = rng.normal(0.97, 0.004, 5)  # what both share of a seed must not widen the interval
    mine = theirs + rng.normal(-0.002, 0.001, 5)
    examples = 10**12 if metric == ACCURACY else EXAMPLES
    got = difference(by_seed(mine), by_seed(theirs), examples, metric)
    expected = stats.ttest_rel(mine, theirs).confidence_interval(CONFIDENCE)
    assert (got.low, got.high) == pytest.approx([metric.scale * end for end in expected], rel=1e-3)
    assert got.seeds == 5
    alone = stats.t.interval(CONFIDENCE, 4, np.mean(mine), stats.sem(mine))
    assert interval(list(mine), examples, metric) == pytest.approx(alone, rel=1e-3)
    assert (interval([0.97], examples, metric) is None) == (metric == LOSS)


@pytest.mark.parametrize(
    ("seeds", "spread", "examples"),
    [(1, 0.0, 360), (2, 0.01, 1000), (3, 0.004, 1000), (3, 0.02, 10_000), (8, 0.004, 1000)],
)
def test_the_interval_holds_the_true_difference_as_often_as_it_says(seeds, spread, examples):
    """Test sets and seeds are drawn anew each time, one test set for all runs: an example is easy or hard."""
    rng, times, held = np.random.default_rng([seeds, examples]), 400, 0
    easy, hard, share = 0.995, 0.6, 0.06
    for _ in range(times):
        difficulty = np.where(rng.random(examples) < share, hard, easy)
        # Each run's own luck moves all its chances; the method is worse by a point on average.
        chances = [
            np.clip(difficulty - lost + rng.normal(0, spread, (seeds, 1)), 0, 1) for lost in (0.01, 0.0)
        ]
        mine, theirs = ((rng.random(chance.shape) < chance).mean(axis=1) for chance in chances)
        got = difference(by_seed(mine), by_seed(theirs), examples, ACCURACY)
        held += got.low <= TRUE[spread] <= got.high
    # 95% less three standard errors of 400 draws.
    assert held / times >= CONFIDENCE - 3 * (CONFIDENCE * (1 - CONFIDENCE) / times) ** 0.5


def _true(spread: float) -> float:
    """The expected difference in points: cutting chances at 1 takes a little of it away."""
    rng = np.random.default_rng(1)
    luck = rng.normal(0, spread, 2_000_000) if spread else np.zeros(1)
    means = []
    for lost in (0.01, 0.0):
        parts = [np.clip(chance - lost + luck, 0, 1).mean() for chance in (0.6, 0.995)]
        means.append(0.06 * parts[0] + 0.94 * parts[1])
    return 100 * float(means[0] - means[1])


TRUE = {spread: _true(spread) for spread in (0.0, 0.01, 0.004, 0.02)}


# Settings


def test_runs_that_differ_in_seed_name_and_storage_are_one_setting():
    at = {"compressor.tau": "0.01"}
    first = made_up("wgt", 0.9, 0, 20, **at, storage="x")
    second = made_up("wgt", 0.8, 1, 30, **at, **{"tracking.layer_interval": "5"})
    third, bare = made_up("wgt", 0.8, 0, 30, **{"compressor.tau": "0.02"}), made_up("none", 0.9)
    results = by_setting([first, second, third, bare])
    assert [group.runs for group in results] == [(bare,), (first, second), (third,)]
    assert results[1].estimate("eval/accuracy", 100).mean == pytest.approx(85)


def test_two_seeds_have_no_interval_to_halve():
    first, *_ = columns(ACCURACY)
    two, three = (
        by_setting([made_up("wgt", 0.9 + seed / 100, seed) for seed in range(n)])[0] for n in (2, 3)
    )
    assert first.cell(two) == "90.50"
    assert first.cell(three).startswith("91.00 ± 2.48")  # t(0.975, 2) / sqrt(3)


def test_a_run_that_was_stopped_early_is_left_out():
    whole = made_up("wgt", 0.9, **{"training.epochs": "4"})
    kept, stopped = (replace(whole, finals={**whole.finals, "epoch": epoch}) for epoch in (4.0, 2.0))
    (group,) = by_setting([kept, stopped])
    assert group.runs == (kept,)
    assert by_setting([stopped]) == []


# What is said


def test_one_seed_on_a_thousand_digits_is_no_claim_of_no_loss():
    """Equal accuracies: the naive statement was "No accuracy lost"."""
    got = change_of([made_up("none", 0.96, 0), made_up("wgt", 0.96, 0)])
    assert got.kind == "open"
    assert got.mean == 0
    said = statements.sentence(got)
    assert "No accuracy lost" not in said + statements.title(got, 0.0)
    possible = re.search(r"up to ([\d.]+) points is not ruled out", said)
    assert float(possible[1]) == pytest.approx(100 * 1.96 * (2 * 0.96 * 0.04 / EXAMPLES) ** 0.5, abs=0.15)
    assert "Seeds were not repeated" in statements.seeds(got)


def test_the_same_seed_three_times_is_one_seed():
    again = [
        replace(made_up(rule, 0.97, 0), run_id=f"{rule}{i}") for i in range(3) for rule in ("none", "wgt")
    ]
    got = change_of(again)
    assert got.seeds == 1
    accuracy = by_setting(again)[0].estimate("eval/accuracy")
    assert accuracy.count == 1
    assert [len(group.values) for group in by_setting(again)] == [1, 1]


@pytest.mark.parametrize("other", [{"examples": None}, {"examples": 500}, {"data.split_seed": "7"}])
def test_without_a_test_set_that_all_share_nothing_is_claimed(other):
    got = change_of(
        [
            made_up(*of, **more)
            for s in range(3)
            for of, more in ((("none", 0.97, s), {}), (("wgt", 0.97, s), other))
        ]
    )
    assert got.kind == "unknown"
    assert (got.low, got.high, got.most_lost) == (None, None, None)
    assert "no interval" in statements.sentence(got)
    assert "interval not known" in change_cell(got)
