"""Fronts and objectives against their definitions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.platform.tasks.metric import ACCURACY, LOSS
from taugrad.search.objective import Objective, TrialOutcome, dominates, front, in_better_fronts

OUTCOMES = st.lists(
    st.builds(TrialOutcome, st.integers(0, 10).map(lambda n: n / 10), st.integers(1, 10).map(float)),
    max_size=12,
)
BASELINE, HIGHER = TrialOutcome(0.95, 1e8), TrialOutcome(0.97, 1e8)


METRICS = pytest.mark.parametrize("metric", [ACCURACY, LOSS])


@METRICS
@given(points=OUTCOMES)
def test_the_front_is_what_no_other_dominates(metric, points):
    kept = front(points, metric)
    values = {(p.value, p.wire_bytes) for p in kept}
    assert len(values) == len(kept)
    brute = {(p.value, p.wire_bytes) for p in points if not any(dominates(q, p, metric) for q in points)}
    assert values == brute
    assert [p.wire_bytes for p in kept] == sorted(p.wire_bytes for p in kept)


@METRICS
@given(others=OUTCOMES, point=st.builds(TrialOutcome, st.just(0.5), st.just(5.0)))
def test_depth_counts_the_points_of_all_better_fronts(metric, others, point):
    rank = {}
    left, level = [*others, point], 0
    while left:
        outer = [p for p in left if not any(dominates(q, p, metric) for q in left)]
        rank |= {id(p): level for p in outer}
        left, level = [p for p in left if id(p) not in rank], level + 1
    assert in_better_fronts(point, others, metric) == sum(rank[id(p)] < rank[id(point)] for p in others)


def test_a_constraint_prefers_whatever_keeps_it():
    objective = Objective("constraint", ACCURACY, 0.5, BASELINE)
    (exact,) = objective.values(TrialOutcome(0.945, 1e6))
    assert exact == pytest.approx(6)
    (broken,) = objective.values(TrialOutcome(0.9449, 10))
    (worse,) = objective.values(TrialOutcome(0.90, 10))
    (baseline,) = objective.values(BASELINE)
    assert exact < baseline < broken < worse
    cheap, dear, bad = TrialOutcome(0.946, 1e5), TrialOutcome(0.95, 1e7), TrialOutcome(0.5, 1)
    assert objective.best([dear, bad, cheap]) is cheap
    assert objective.best([bad]) is None


def test_a_loss_keeps_a_constraint_where_it_is_low_enough():
    """A naive reading would take the highest value, or points for nats."""
    objective = Objective("constraint", LOSS, 0.02, TrialOutcome(1.94, 1e8))
    kept, high, worse = TrialOutcome(1.96, 1e6), TrialOutcome(1.9601, 10), TrialOutcome(2.4, 10)
    assert objective.values(kept) == [pytest.approx(6)]
    assert objective.values(kept) < objective.values(high) < objective.values(worse)
    lower = TrialOutcome(1.5, 1e7)
    assert objective.missing(lower) < 0
    assert objective.best([worse, high, lower, kept]) is kept
    assert objective.best([worse, high]) is None
    assert objective.proposed([worse, high])[0] is high
    assert Objective("front", LOSS).modes == ["min", "min"]


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["front", "constraint"])
def test_the_sampler_is_told_finite_numbers_of_a_training_that_diverged(kind, value):
    objective = Objective(kind, LOSS, 0.02, TrialOutcome(1.94, 1e8))
    diverged, bad = objective.values(TrialOutcome(value, 1e3)), objective.values(TrialOutcome(9.0, 1e3))
    assert all(map(math.isfinite, (*diverged, *objective.worst())))
    assert diverged > bad
    assert dominates(TrialOutcome(9.0, 1e3), TrialOutcome(value, 1e3), LOSS)


POINTS = [
    TrialOutcome(0.43, 1e4),
    TrialOutcome(0.93, 1e5),
    TrialOutcome(0.946, 1e6),
    TrialOutcome(0.951, 1e7),
]
BARE, TOP = "the accuracy without compression", "the most accurate one"


@pytest.mark.parametrize(
    ("objective", "place", "why"),
    [
        (
            Objective("front", LOSS, 0.5, TrialOutcome(0.44, 1e8)),
            0,
            "sends least within 0.5 nats of the test loss without compression",
        ),
        (Objective("front", LOSS, 0.5), 0, "sends least within 0.5 nats of the best one"),
        (Objective("front", ACCURACY, 0.5, BASELINE), 2, f"sends least within 0.5 points of {BARE}"),
        (Objective("front", ACCURACY, 2.5, BASELINE), 1, f"sends least within 2.5 points of {BARE}"),
        (Objective("front", ACCURACY, 0.5), 2, f"sends least within 0.5 points of {TOP}"),
        (Objective("front", ACCURACY, 0.4), 3, f"sends least within 0.4 points of {TOP}"),
        (Objective("front", ACCURACY, 0.5, HIGHER), 2, f"sends least within 0.5 points of {TOP}"),
        (Objective("constraint", ACCURACY, 0.5, BASELINE), 2, f"sends least within 0.5 points of {BARE}"),
        (Objective("constraint", ACCURACY, 0.5, HIGHER), 3, f"comes nearest to {BARE}"),
        (Objective("accuracy_per_wire_gb", ACCURACY), 0, "reaches most accuracy per wire GB"),
    ],
)
def test_the_proposed_point_is_the_one_that_the_objective_prefers(objective, place, why):
    assert objective.proposed(POINTS) == (POINTS[place], why)


def test_of_points_that_learned_nothing_the_best_is_on_the_front():
    dear, cheap = TrialOutcome(0.0, 2e6), TrialOutcome(0.0, 1e6)
    assert Objective("accuracy_per_wire_gb", ACCURACY).best([dear, cheap]) is cheap
    assert front([dear, cheap], ACCURACY) == [cheap]
