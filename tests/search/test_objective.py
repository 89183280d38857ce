"""Fronts and objectives against their definitions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.search.objective import Objective, Outcome, dominates, front, in_better_fronts

OUTCOMES = st.lists(
    st.builds(Outcome, st.integers(0, 10).map(lambda n: n / 10), st.integers(1, 10).map(float)), max_size=12
)
BASELINE = Outcome(0.95, 1e8)


@given(OUTCOMES)
def test_the_front_is_what_no_other_dominates(points):
    kept = front(points)
    values = {(p.accuracy, p.wire_bytes) for p in kept}
    assert len(values) == len(kept)
    brute = {(p.accuracy, p.wire_bytes) for p in points if not any(dominates(q, p) for q in points)}
    assert values == brute
    assert [p.wire_bytes for p in kept] == sorted(p.wire_bytes for p in kept)


@given(OUTCOMES, st.builds(Outcome, st.just(0.5), st.just(5.0)))
def test_depth_counts_the_points_of_all_better_fronts(others, point):
    rank = {}
    left, level = [*others, point], 0
    while left:
        outer = [p for p in left if not any(dominates(q, p) for q in left)]
        rank |= {id(p): level for p in outer}
        left, level = [p for p in left if id(p) not in rank], level + 1
    assert in_better_fronts(point, others) == sum(rank[id(p)] < rank[id(point)] for p in others)


def test_a_constraint_prefers_whatever_keeps_it():
    objective = Objective("constraint", 0.5, BASELINE)
    (exact,) = objective.values(Outcome(0.945, 1e6))
    assert exact == pytest.approx(6)
    (broken,) = objective.values(Outcome(0.9449, 10))
    (worse,) = objective.values(Outcome(0.90, 10))
    (baseline,) = objective.values(BASELINE)
    assert exact < baseline < broken < worse
    cheap, dear, bad = Outcome(0.946, 1e5), Outcome(0.95, 1e7), Outcome(0.5, 1)
    assert objective.best([dear, bad, cheap]) is cheap
    assert objective.best([bad]) is None


def test_accuracy_per_byte_is_percent_over_wire_gigabytes():
    objective = Objective("accuracy_per_wire_gb")
    assert objective.values(Outcome(0.5, 2e9)) == [pytest.approx(25)]
    assert objective.best([Outcome(0.5, 2e9), Outcome(0.9, 1e9)]) == Outcome(0.9, 1e9)
    assert objective.modes == ["max"]


def test_a_front_has_two_values_and_no_best_point():
    objective = Objective("front")
    assert objective.values(Outcome(0.5, 1000)) == [0.5, pytest.approx(3)]
    assert math.isfinite(objective.values(Outcome(0.5, 0))[1])
    assert objective.best([Outcome(0.5, 1000)]) is None


POINTS = [Outcome(0.43, 1e4), Outcome(0.93, 1e5), Outcome(0.946, 1e6), Outcome(0.951, 1e7)]
BARE, TOP = "the accuracy without compression", "the most accurate one"


@pytest.mark.parametrize(
    ("objective", "place", "why"),
    [
        (Objective("front", 0.5, BASELINE), 2, f"sends least within 0.5 points of {BARE}"),
        (Objective("front", 2.5, BASELINE), 1, f"sends least within 2.5 points of {BARE}"),
        (Objective("front", 0.5), 2, f"sends least within 0.5 points of {TOP}"),
        (Objective("front", 0.4), 3, f"sends least within 0.4 points of {TOP}"),
        (Objective("front", 0.5, Outcome(0.97, 1e8)), 2, f"sends least within 0.5 points of {TOP}"),
        (Objective("constraint", 0.5, BASELINE), 2, f"sends least within 0.5 points of {BARE}"),
        (Objective("constraint", 0.5, Outcome(0.97, 1e8)), 3, f"comes nearest to {BARE}"),
        (Objective("accuracy_per_wire_gb"), 0, "reaches most accuracy per wire GB"),
    ],
)
def test_the_proposed_point_is_the_one_that_the_objective_prefers(objective, place, why):
    assert objective.proposed(POINTS) == (POINTS[place], why)


@given(OUTCOMES.filter(len), st.integers(0, 10).map(lambda n: n / 10), st.integers(0, 100))
def test_the_proposed_point_of_a_front_follows_from_its_formula(points, bare, tolerance):
    limit = min(bare, max(p.accuracy for p in points)) - tolerance / 100
    chosen, _ = Objective("front", tolerance, Outcome(bare, 1e8)).proposed(points)
    least = min(p.wire_bytes for p in points if p.accuracy >= limit - 1e-9)
    assert chosen.wire_bytes == least
    assert chosen in front(points)
