"""Momentum moved between optimizer and compressor: there and back, and the decay that goes with it."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.platform.spec import RunSpec
from taugrad.search.auto_specs import in_optimizer, momentum_first


def spec(momentum: float, decay: float, **fields: Any) -> RunSpec:
    optimizer = {"kind": "sgd", "momentum": momentum, "weight_decay": decay}
    tree = {"compressor": "strom(0.1)", "training": {"optimizer": optimizer}, "sync": {"mode": "simulated"}}
    return RunSpec.model_validate(tree | fields)


@settings(max_examples=50)
@given(st.integers(0, 99), st.integers(0, 10**4))
def test_there_and_back_is_the_same_spec(hundredths, decay):
    here = spec(hundredths / 100, decay / 10**5)
    moved = momentum_first(here)
    assert moved.compressor.momentum_correction == hundredths / 100
    assert moved.training.optimizer.momentum == 0
    assert RunSpec.model_validate(in_optimizer(moved)) == here


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
    there = momentum_first(here).training.optimizer
    steps = 2000
    whole = decayed(momentum, 0.01, steps)
    assert whole < 0.7  # it matters
    assert decayed(0.0, there.weight_decay, steps) == pytest.approx(whole, rel=0.01)
    assert decayed(0.0, 0.01, steps) > 1.1 * whole  # left as it was, it would do less


@pytest.mark.parametrize(
    "fields",
    [
        {"training": {"optimizer": {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.01}}},
        {"training": {"optimizer": {"kind": "sgd", "momentum": 0.9, "nesterov": True}}},
        {"training": {"optimizer": {"kind": "lars", "momentum": 0.9}}},
        {"training": {"optimizer": {"kind": "muon"}}},
        {"training": {"optimizer": {"kind": "adam"}}},
        {"sync": {"mode": "weights", "every": 4}},
        {"sync": {"mode": "hybrid"}},
        {"sync": {"mode": "gradients", "pattern": "ring"}},
        {"compressor": "strom(0.1, exempt={'smaller_than': 100})"},
        {"compressor": "linear(8)"},
    ],
)
def test_momentum_stays_where_it_would_be_another_algorithm_before_the_threshold(fields):
    here = spec(0.9, 0.01, **fields)
    assert momentum_first(here) == here


def test_lars_keeps_its_decay_when_it_gets_the_compressors_momentum():
    optimizer = {"kind": "lars", "momentum": 0.0, "weight_decay": 0.01}
    there = spec(0, 0, compressor="strom(0.1, momentum=0.9)", training={"optimizer": optimizer})
    expected = optimizer | {"momentum": 0.9}
    assert in_optimizer(there)["training"]["optimizer"].items() >= expected.items()
    assert in_optimizer(spec(0.9, 0.01)) == spec(0.9, 0.01).model_dump(mode="json")
