import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.platform.training.batch_plan import BatchPlan, Position, adabatch_size
from taugrad.platform.training.config import AdaBatch, TrainingConfig


@pytest.mark.parametrize(
    ("first", "now", "by_formula", "by_text"),
    [
        (0.9, 0.9, 64, 64),
        (0.9, 0.46, 64, 64),
        (0.9, 0.45, 128, 128),
        (0.9, 0.3, 256, 128),
        (0.9, 0.225, 512, 256),
        (0.9, 0.18, 1024, 256),
        (0.9, 0.01, 5000, 4096),
        (0.5, 0.9, 64, 64),
        (0.9, 0.0, 5000, 5000),
        (0.0, 0.0, 64, 64),
        (0.0, 0.9, 64, 64),
        (2.3, float("inf"), 64, 64),
        (2.3, float("nan"), 64, 64),
        (float("nan"), 2.3, 64, 64),
        (float("inf"), float("inf"), 64, 64),
        (float("inf"), 1.0, 5000, 5000),
        (1e308, 1e-308, 5000, 5000),
    ],
)
def test_batches_by_hand(first, now, by_formula, by_text):
    for form, size in (("formula", by_formula), ("text", by_text)):
        assert adabatch_size(AdaBatch(most=5000, form=form), 64, first, now) == size


def training(**changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate({"epochs": 4, "batch_size": 10} | changes)


@given(st.lists(st.floats(0.01, 1), min_size=5, max_size=5), st.integers(1, 200))
def test_positions_are_those_of_a_walk_through_the_run(errors, examples):
    plan = BatchPlan(training(batch_growth={"kind": "adabatch", "most": 64}), examples)
    plan.measured(0, errors[0], 1.0)
    done, size, seen = 0, 10, []
    for epoch in range(4):
        starts = range(0, examples, size)
        for iteration, _ in enumerate(starts):
            expected = Position(epoch, iteration, len(starts), done, size, plan.iterations)
            assert plan.position(done) == expected
            assert next(plan.rest_of_epoch(done)) == expected
            assert expected.ends_epoch == (iteration == len(starts) - 1)
            assert plan.epochs_done(done) == pytest.approx(epoch + iteration / len(starts))
            seen.append((plan.iterations, done + len(starts) - iteration + (3 - epoch) * len(starts)))
            done += 1
        assert plan.epochs_done(done) == epoch + 1
        plan.measured(done, errors[epoch + 1], 1.0)
        size = adabatch_size(AdaBatch(most=64), 10, errors[0], errors[epoch + 1])
    assert plan.iterations == done
    assert all(found == expected for found, expected in seen)
    with pytest.raises(ValueError, match=f"after {done} iterations"):
        plan.position(done)


@pytest.mark.parametrize(("measure", "size"), [("error", 20), ("loss", 40)])
def test_the_measure_that_was_chosen_decides(measure, size):
    plan = BatchPlan(training(batch_growth={"kind": "adabatch", "most": 40, "measure": measure}), 95)
    plan.measured(0, 0.9, 3.0)
    plan.measured(10, 0.45, 1.0)
    assert plan.position(10).batch_size == size
