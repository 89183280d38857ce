"""What is shown of a run whose iterations are slow; the clock is the test's."""

import itertools

import pytest
from recorder import trained

from taugrad.platform.training import trainer as trainers

pytestmark = pytest.mark.usefixtures("alone")
SPEC = {
    "data": {"kind": "synthetic", "train_examples": 240, "test_examples": 10, "height": 4, "width": 4},
    "model": {"kind": "mlp", "widths": [4]},
    "training": {"epochs": 1, "batch_size": 10},
    "tracking": {"flush_interval": 1000},
    "workers": {"count": 2},
}
SIMULATED = {"mode": "simulated"}
WEIGHTS = {"mode": "simulated", "of": {"mode": "weights", "every": 20}}


@pytest.mark.parametrize(("sync", "own_models"), [(SIMULATED, False), (WEIGHTS, True)])
def test_slow_iterations_are_shown_before_they_are_averaged(sync, own_models, monkeypatch):
    seconds = itertools.count(step=10.0)  # between any two looks at the clock
    monkeypatch.setattr(trainers, "perf_counter", lambda: next(seconds))
    _, shown = trained(SPEC | {"sync": sync})
    # Averages at checkpoints show some of them once more.
    assert list(dict.fromkeys(each.iteration for each in shown.progresses)) == list(range(1, 25))
    assert {each.own_models for each in shown.progresses} == {own_models}
