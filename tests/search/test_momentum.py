"""Momentum moved between optimizer and compressor: there and back, and the decay that goes with it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.platform.spec import RunSpec
from taugrad.search.momentum import decay_beside, in_compressor, in_optimizer, momentum_correction


def spec(momentum: float, decay: float, kind: str = "sgd") -> RunSpec:
    optimizer = {"kind": kind, "momentum": momentum, "weight_decay": decay}
    tree = {"compressor": "strom(0.1)", "training": {"optimizer": optimizer}}
    return RunSpec.model_validate(tree | {"sync": {"mode": "simulated"}})


@settings(max_examples=50)
@given(st.integers(0, 99), st.integers(0, 10**4), st.sampled_from(["sgd", "lars"]))
def test_there_and_back_is_the_same_spec(hundredths, decay, kind):
    here = spec(hundredths / 100, decay / 10**5, kind)
    moved = RunSpec.model_validate(in_compressor(here))
    assert momentum_correction(moved.compressor) == hundredths / 100
    assert moved.training.optimizer.momentum == 0
    back = RunSpec.model_validate(in_optimizer(moved))
    assert back == here
    if kind == "lars":  # a norm of gradient and decay scales both
        assert moved.training.optimizer.weight_decay == here.training.optimizer.weight_decay


def decayed(momentum: float, decay: float, steps: int) -> float:
    """What SGD leaves of a weight of 1 whose gradient is 0."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.01, momentum=momentum, weight_decay=decay)
    for _ in range(steps):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
    return float(weight.detach())


@pytest.mark.parametrize("momentum", [0.5, 0.9])
def test_weights_decay_as_they_did(momentum):
    here = spec(momentum, 0.01)
    there = RunSpec.model_validate(in_compressor(here)).training.optimizer
    steps = 2000
    whole = decayed(momentum, 0.01, steps)
    assert whole < 0.7  # it matters
    assert decayed(0.0, there.weight_decay, steps) == pytest.approx(whole, rel=0.01)
    assert decayed(0.0, 0.01, steps) > 1.1 * whole  # left as it was, it would do less
    assert decay_beside(momentum, there.weight_decay, "sgd") == 0.01


def test_without_momentum_nothing_moves_and_nesterovs_has_no_place_there():
    assert in_compressor(spec(0.0, 0.01)) == spec(0.0, 0.01).model_dump(mode="json")
    assert in_optimizer(spec(0.9, 0.01)) == spec(0.9, 0.01).model_dump(mode="json")
    adam = RunSpec.model_validate({"compressor": "strom(0.1)", "training": {"optimizer": {"kind": "adam"}}})
    assert in_compressor(adam) == adam.model_dump(mode="json")
    tree = spec(0.9, 0.01).model_dump(mode="json")
    tree["training"]["optimizer"]["nesterov"] = True
    with pytest.raises(ValueError, match=r"training\.optimizer\.nesterov = True"):
        in_compressor(RunSpec.model_validate(tree))
