"""What a run's batches are, from any iteration of an epoch on."""

import re
from contextlib import closing, contextmanager

import numpy as np
import pytest
import torch
from bits import same

from taugrad.platform.data import DataError, Draw
from taugrad.platform.data.batch_plan import Position
from taugrad.platform.data.batches import iterations_per_epoch
from taugrad.platform.data.feeding import feed


@contextmanager
def refused(*parts, match="", error=DataError):
    """What is refused in one line, which has all these parts, such as the file's path and what is wrong."""
    with pytest.raises(error) as caught:
        yield
    said = str(caught.value)
    assert [part for part in map(str, parts) if part not in said] == [], said
    assert re.search(match, said), said
    assert "\n" not in said


def batches(data, *, first=0, epoch=0, seed=3, batch_size=8, workers=2, most=10**9):
    """The batches of all workers, [(inputs, targets)], from an iteration of an epoch on."""
    count = iterations_per_epoch(len(data.train), batch_size)
    positions = [
        Position(epoch, iteration, count, iteration, batch_size)
        for iteration in range(first, min(count, first + most))
    ]
    cpu = torch.device("cpu")
    with closing(feed(data.train, Draw(seed, epoch), positions, range(workers), workers, cpu)) as coming:
        return [(batch.inputs, batch.targets) for batches in coming for batch in batches]


def check_resumes(load):
    """Batches from the middle of an epoch on are those of a run that began before, in another process even.

    Args:
        load: makes the data; called twice, so that nothing is remembered from the first time.
    """
    whole = batches(load(), epoch=1)
    assert len(whole) >= 6
    middle = (len(whole) // 2) // 2
    assert same(batches(load(), first=middle, epoch=1), whole[2 * middle :])
    assert not same(batches(load(), epoch=2), whole)
    assert not same(batches(load(), epoch=1, seed=4), whole)


def check_augments(augmented, plain):
    """Training examples alone change, and by seed, epoch and example alone."""
    whole = all_examples(augmented.train, Draw(1, 2))[0]
    some = augmented.train.batch(np.array([7, 2, 5]), Draw(1, 2))[0]
    assert torch.equal(some, whole[[7, 2, 5]])
    assert not torch.equal(all_examples(augmented.train, Draw(1, 3))[0], whole)
    for part in ("train", "test"):
        without = all_examples(getattr(plain, part))[0]
        assert torch.equal(all_examples(getattr(augmented, part))[0], without)
    assert torch.equal(all_examples(augmented.test, Draw(1, 2))[0], all_examples(plain.test)[0])


def all_examples(examples, draw=None):
    return examples.batch(np.arange(len(examples), dtype=np.int64), draw)
