"""Threshold policies: the tau that each decides, against the definitions."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from workbench import METHOD, Worker, part_of, policy_of

from taugrad.compressors.ops.interface import LARGEST_TAU, SMALLEST_TAU
from taugrad.compressors.ops.parts import Part
from taugrad.compressors.thresholds.base import Policy, PolicyMemory
from taugrad.compressors.thresholds.density import DensityMemory, Warmup

NOTHING = part_of(torch.zeros(4))


def tau_of(policy: Policy, part: Part, iteration: int, memory: PolicyMemory | None = None) -> float:
    memory = policy.memory_of(part.name)() if memory is None else memory
    (tau,) = policy.taus([part], iteration, [memory], METHOD)
    assert type(tau) is float
    assert np.float32(tau) == tau
    return tau


# By iteration.

BETWEEN = {
    # By iteration 0 to 12, of points {2: 0.1, 6: 0.4, 10: 0.2}, worked out by hand.
    "step": [0.1] * 6 + [0.4] * 4 + [0.2] * 3,
    "linear": [0.1, 0.1, 0.1, 0.175, 0.25, 0.325, 0.4, 0.35, 0.3, 0.25, 0.2, 0.2, 0.2],
    "exponential": [
        *[0.1, 0.1, 0.1, 0.1 * 4**0.25, 0.2, 0.1 * 4**0.75],
        *[0.4, 0.4 / 2**0.25, 0.4 / 2**0.5, 0.4 / 2**0.75, 0.2, 0.2, 0.2],
    ],
}


@in_turn("between", BETWEEN)
def test_a_schedule_holds_outside_its_points_and_goes_from_one_to_the_next(between: str) -> None:
    policy = policy_of(f"schedule({{2: 0.1, 10: 0.2, 6: 0.4}}, between={between!r})")
    memory = PolicyMemory()
    taus = [tau_of(policy, NOTHING, iteration, memory) for iteration in range(13)]
    assert taus == pytest.approx(BETWEEN[between], rel=1e-6)
    assert [taus[2], taus[6], taus[10]] == [np.float32(0.1), np.float32(0.4), np.float32(0.2)]
    assert memory.plain() == {}


# By density.


def gradient_of(n: int, seed: int = 0) -> torch.Tensor:
    """Heavy tails, as gradients have."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy((rng.standard_normal(n) ** 3 * 1e-3).astype(np.float32))


@in_turn("density", [0.001, 0.01, 0.1, 0.5, 1.0])
@in_turn("n", [1, 2, 10, 1000, 2**14])
def test_tau_is_exact_where_the_sample_is_everything(n: int, density: float) -> None:
    gradient, residual = gradient_of(n), gradient_of(n, 1)
    tau = tau_of(policy_of(f"density({density})"), part_of(gradient, residual), 0)
    magnitudes = np.sort(np.abs(residual.numpy() + gradient.numpy()))[::-1]
    wanted = max(1, math.ceil(Fraction(str(density)) * n))
    assert tau == magnitudes[wanted - 1]


@in_turn(
    ("values", "expected"),
    [
        ([], SMALLEST_TAU),
        ([0.0] * 50, SMALLEST_TAU),
        ([1e-45] * 50, SMALLEST_TAU),
        ([3e38] * 50, LARGEST_TAU),
        ([math.nan] * 50, SMALLEST_TAU),
        ([math.inf] * 50, SMALLEST_TAU),
        ([math.nan] * 25 + [2.0] * 25, 2.0),
        ([-math.inf] * 25 + [-0.5] * 25, 0.5),
    ],
)
@in_turn("dtype", [torch.float32, torch.bfloat16])
def test_tau_stays_in_its_range_whatever_the_gradient(
    values: list[float], expected: float, dtype: torch.dtype
) -> None:
    part = part_of(torch.tensor(values, dtype=dtype))
    for line in ("density(0.02)", "layers(density(0.02), patterns={'q': 1.0})"):
        tau = tau_of(policy_of(line), part, 0)
        assert SMALLEST_TAU <= tau <= LARGEST_TAU
        assert tau == pytest.approx(expected, rel=1e-6)


@in_turn(
    ("plain", "words"),
    [
        ({}, "without again, alarm, least, most, target, tau"),
        ({**DensityMemory().plain(), "stages": 1}, "with stages, which is unknown"),
        ({**DensityMemory().plain(), "tau": "0.1"}, "tau = '0.1' is not a number"),
    ],
)
def test_a_memory_of_another_policy_is_refused(plain: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DensityMemory.from_plain(plain)


# The warm-up of Deep Gradient Compression.


def test_the_warm_up_has_the_papers_stages() -> None:
    warmup = Warmup(iterations=4)
    stages = [warmup.density(0.001, iteration) for iteration in range(6)]
    # "75%, 93.75%, 98.4375%, 99.6%, 99.9%" sparsity: a quarter of the density from stage to stage.
    assert stages == pytest.approx([0.25, 0.25 / 3.976, 0.25 / 15.81, 0.25 / 62.87, 0.001, 0.001], rel=1e-3)
    exact = [warmup.density(0.25 / 4**4, iteration) for iteration in range(5)]
    assert exact == pytest.approx([0.25, 0.0625, 0.015625, 0.00390625, 0.0009765625], rel=1e-12)


@in_turn(("iterations", "stages"), [(10, 3), (100, 4), (7, 7), (3, 1000), (5, 1)])
def test_the_warm_up_falls_in_equal_stages_down_to_the_target(iterations: int, stages: int) -> None:
    warmup = Warmup(iterations=iterations, start=0.5, stages=stages)
    densities = [warmup.density(0.01, iteration) for iteration in range(iterations + 3)]
    assert densities[0] == 0.5
    assert densities[iterations:] == [0.01] * 3
    assert densities == sorted(densities, reverse=True)
    assert len(set(densities)) == min(stages, iterations) + 1
    lengths = [densities.count(density) for density in sorted(set(densities) - {0.01})]
    assert max(lengths) - min(lengths) <= 1


# By layer.


def test_the_first_pattern_that_fits_counts() -> None:
    policy = policy_of("layers(0.5, patterns={'conv*.weight': 0.1, '*.weight': 0.2, 'fc?': 0.3, 'c*': 0.4})")
    expected = {
        "conv1.weight": 0.1,
        "fc.weight": 0.2,
        "fc1": 0.3,
        "fc12": 0.5,
        "conv1.bias": 0.4,
        "Conv1.weight": 0.2,
        "other": 0.5,
    }
    for name, tau in expected.items():
        assert tau_of(policy, part_of(torch.ones(3), name=name), 0) == np.float32(tau), name


def test_layers_may_have_policies_of_their_own() -> None:
    policy = policy_of("layers(schedule({0: 0.1, 2: 0.4}), patterns={'d*': density(0.1, every=5), 'n': 0.7})")
    memories = {name: policy.memory_of(name)() for name in "dns"}
    gradients = [gradient_of(100, seed) for seed in range(4)]
    results = {
        name: [tau_of(policy, part_of(g, name=name), i, memory) for i, g in enumerate(gradients)]
        for name, memory in memories.items()
    }
    assert results["n"] == [np.float32(0.7)] * 4
    assert results["s"] == pytest.approx([0.1, 0.2, 0.4, 0.4], rel=1e-6)
    alone = policy_of("density(0.1)")
    assert results["d"] == [tau_of(alone, part_of(gradients[i]), 0) for i in (0, 1, 2, 2)]
    assert [type(memory) for memory in memories.values()] == [DensityMemory, PolicyMemory, PolicyMemory]


# In a rule.


@in_turn(
    "line",
    [
        "wgt(density(0.05, every=1))",
        "bgt(density(0.05, every=2))",
        "wgt(density(0.05, every=1), momentum=0.9)",
        "qgt(density(0.05, every=1), momentum=0.5)",
        "topk(0.05, sampled=True, momentum=0.9)",
    ],
)
def test_a_rule_sends_the_density_that_was_asked_for(line: str) -> None:
    n, taus = 10_000, []
    worker = Worker(line, (n,))
    momentum = getattr(worker.config, "momentum", 0)
    for iteration in range(8):
        gradient = gradient_of(n, iteration)
        worker.commit()
        (velocity,) = worker.velocities
        moved = gradient if velocity is None else velocity * momentum + gradient
        magnitudes = (torch.from_numpy(worker.residual(0)) + moved).abs()
        (tally,) = worker.step([gradient.numpy()]).tallies
        taus.append(tally.tau)
        assert tally.sent == int((magnitudes >= tally.tau).sum())
        if "every=2" in line and iteration % 2 and iteration > 1:
            assert tally.tau == taus[-2]  # kept, as the sample before it met the density exactly
        else:
            assert tally.sent == 500
