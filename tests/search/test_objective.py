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


def test_the_ratio_is_percent_over_wire_gigabytes():
    objective = Objective("ratio")
    assert objective.values(Outcome(0.5, 2e9)) == [pytest.approx(25)]
    assert objective.best([Outcome(0.5, 2e9), Outcome(0.9, 1e9)]) == Outcome(0.9, 1e9)
    assert objective.modes == ["max"]


def test_a_front_has_two_values_and_no_best_point():
    objective = Objective("front")
    assert objective.values(Outcome(0.5, 1000)) == [0.5, pytest.approx(3)]
    assert math.isfinite(objective.values(Outcome(0.5, 0))[1])
    assert objective.best([Outcome(0.5, 1000)]) is None
