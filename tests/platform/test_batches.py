import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taugrad.platform.data.batches import epoch_order, iterations_per_epoch, worker_share

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
    assert [each.indices.tolist() for each in shares[:at_work] if each.weight] == [
        part.tolist() for part in parts if len(part)
    ]
    assert all(each.weight == 0 and len(each.indices) == 1 for each in shares[at_work:])
    mean = sum(share.weight * losses[share.indices].mean() for share in shares) / workers
    assert mean == pytest.approx(losses[order[start : start + batch_size]].mean(), rel=1e-12)


def test_configs_and_batches_do_not_import_torch():
    code = (
        "import sys, taugrad.platform.data.config, taugrad.platform.data.batches, "
        "taugrad.platform.models.config; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
