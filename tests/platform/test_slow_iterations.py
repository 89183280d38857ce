"""What is shown of a run whose iterations are slow; the clock is the test's."""

import itertools

import pytest
import torch

from taugrad.platform.data import load
from taugrad.platform.spec import RunSpec
from taugrad.platform.training import trainer as trainers
from taugrad.platform.training.reporting import Listener, Progress
from taugrad.platform.training.trainer import Trainer

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


class Shown(Listener):
    """A listener that keeps how far it was told that a run is."""

    def __init__(self) -> None:
        self.progresses: list[Progress] = []

    def progress(self, progress: Progress, *, evaluated: bool) -> None:
        self.progresses.append(progress)


@pytest.mark.parametrize(("sync", "own_models"), [(SIMULATED, False), (WEIGHTS, True)])
def test_slow_iterations_are_shown_before_they_are_averaged(
    sync: dict, own_models: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(step=10.0)  # between any two looks at the clock
    monkeypatch.setattr(trainers, "perf_counter", lambda: next(seconds))
    spec = RunSpec.model_validate(SPEC | {"sync": sync})
    shown = Shown()
    Trainer(spec, load(spec.data), torch.device("cpu"), shown).fit()
    # Averages at checkpoints show some of them once more.
    assert list(dict.fromkeys(each.iteration for each in shown.progresses)) == list(range(1, 25))
    assert {each.own_models for each in shown.progresses} == {own_models}
