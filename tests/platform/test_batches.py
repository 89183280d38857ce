import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.platform.data.batch_plan import BatchPlan, Position, adabatch_size
from taugrad.platform.data.batches import epoch_order, iterations_per_epoch, worker_share
from taugrad.platform.spec.training import AdaBatch, TrainingConfig

examples = st.integers(1, 200)
batch_sizes = st.integers(1, 70)
worker_counts = st.integers(1, 12)


@given(examples, st.integers(0, 2**32 - 1), st.integers(0, 1000))
def test_an_epochs_order_is_a_permutation_that_can_be_repeated(count, seed, epoch):
    order = epoch_order(count, seed, epoch)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))
    np.testing.assert_array_equal(order, epoch_order(count, seed, epoch))


def test_an_order_stays_what_it_was_in_an_earlier_version():
    # A resumed run must find the order of the run that it goes on from.
    assert epoch_order(10, seed=3, epoch=2).tolist() == [7, 4, 1, 8, 6, 0, 2, 9, 3, 5]


@given(examples, batch_sizes, worker_counts)
def test_an_epoch_shows_every_example_once_whatever_the_number_of_workers(count, batch_size, workers):
    order = epoch_order(count, 1, 0)
    seen = []
    for iteration in range(iterations_per_epoch(count, batch_size)):
        for rank in range(workers):
            share = worker_share(order, iteration * batch_size, batch_size, rank, workers)
            if share.weight > 0:
                seen += share.indices.tolist()
    assert seen == order.tolist()


@given(st.data(), examples, batch_sizes, worker_counts)
def test_fewer_workers_share_a_batch_and_the_mean_over_all_stays_the_batchs(data, count, batch_size, workers):
    order = epoch_order(count, 0, 0)
    losses = np.random.default_rng(count).lognormal(size=count)
    at_work = data.draw(st.integers(1, workers))
    start = data.draw(st.integers(0, count - 1))
    shares = [worker_share(order, start, batch_size, rank, workers, at_work) for rank in range(workers)]
    parts = np.array_split(order[start : start + batch_size], at_work)
    assert [share.indices.tolist() for share in shares[:at_work] if share.weight] == [
        part.tolist() for part in parts if len(part)
    ]
    assert all(share.weight == 0 and len(share.indices) == 1 for share in shares[at_work:])
    mean = sum(share.weight * losses[share.indices].mean() for share in shares) / workers
    assert mean == pytest.approx(losses[order[start : start + batch_size]].mean(), rel=1e-12)


def test_configs_and_batches_do_not_import_torch():
    code = (
        "import sys, taugrad.platform.spec.data, taugrad.platform.data.batches, "
        "taugrad.platform.spec.models; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Batches that grow.


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
    assert all(actual == expected for actual, expected in seen)
    with pytest.raises(ValueError, match=f"after {done} iterations"):
        plan.position(done)


@pytest.mark.parametrize(("measure", "size"), [("error", 20), ("loss", 40)])
def test_the_measure_that_was_chosen_decides(measure, size):
    plan = BatchPlan(training(batch_growth={"kind": "adabatch", "most": 40, "measure": measure}), 95)
    plan.measured(0, 0.9, 3.0)
    plan.measured(10, 0.45, 1.0)
    assert plan.position(10).batch_size == size
