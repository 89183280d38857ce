"""Automatic thresholds on streams of gradients whose scale drifts, jumps and differs by layer."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
import workbench
from cases import in_turn
from numpy.typing import NDArray

from taugrad.compressors.ops.parts import Part
from taugrad.compressors.thresholds.dl4j import Dl4jMemory
from taugrad.compressors.thresholds.samples import SAMPLE

Floats = NDArray[np.float32]
SIZES = (20_000, 3_000, 8_000)
STEPS = 110
"""The scale jumps after half of them."""
SCALES: dict[str, Callable[[int], float]] = {
    "steady": lambda step: 1.0,
    "drifting": lambda step: 1.02**step,
    "jumping": lambda step: 1.0 if step < STEPS // 2 else 100.0,
    "falling": lambda step: 1.0 if step < STEPS // 2 else 0.01,
}
POLICIES = (
    "density(0.02, every=5)",
    "sidco(0.02, every=5)",
    "sidco(0.02, fit='pareto', every=4)",
    "dl4j(0.5, target=0.05)",
    "allocate(0.02, every=5)",
)
"""One of each kind."""


def gradients(
    step: int, scale: float = 1.0, sizes: tuple[int, ...] = SIZES, power: float = 1.0
) -> list[Floats]:
    """Each layer a tenth of the scale of the one before; power 1 is normal, more has heavier tails."""
    rng = np.random.default_rng(step)
    normal = [rng.standard_normal(size) for size in sizes]
    return [
        (np.sign(gradient) * np.abs(gradient) ** power * scale * 10.0**-i).astype(np.float32)
        for i, gradient in enumerate(normal)
    ]


def densities(line: str, scale: Callable[[int], float], power: float = 1.0) -> NDArray[np.float64]:
    """[steps, layers], the shares sent."""
    worker, results = workbench.Worker(line, SIZES), []
    for step in range(STEPS):
        tallies = worker.step(gradients(step, scale(step), power=power)).tallies
        results.append([tally.sent / tally.elements for tally in tallies])
    return np.array(results)


@in_turn(("rule", "power"), [("wgt", 3.0), ("strom", 1.0)])
@in_turn("scale", SCALES)
def test_a_density_is_kept_to_between_samples(rule: str, scale: str, power: float) -> None:
    result = densities(f"{rule}(density(0.01, every=50))", SCALES[scale], power)
    assert np.all(np.abs(np.log(result[:20].mean(0) / 0.01)) < math.log(2))  # residuals grow from zero
    # A drift of 2% an iteration is followed from behind, farthest where 30 elements are expected.
    behind = np.array([1.5, 1.6 if scale == "drifting" else 1.5, 1.5])
    assert np.all(np.abs(np.log(result[25:50].mean(0) / 0.01)) < np.log(behind))
    # After a fall old residuals end sharply at the old tau: now and then nothing reaches the new one.
    most = 2.2 if scale == "falling" else behind
    assert np.all(np.abs(np.log(result[-40:].mean(0) / 0.01)) < np.log(most))


@in_turn(("scale", "late"), [("jumping", 1), ("falling", 2)])
def test_a_jump_is_followed_at_once_and_a_fall_when_it_is_looked_for(scale: str, late: int) -> None:
    result = densities("wgt(density(0.01, every=1000))", SCALES[scale])[STEPS // 2 :]
    large = [0, 2]  # in a layer where few elements are expected some may be chance
    assert np.all((result[:late] > 0.5) | (result[:late] < 0.002))
    # Layers as small as the sample are met exactly, the largest to its error of five deviations.
    assert np.allclose(result[late][large], 0.01, atol=5 * math.sqrt(0.01 / SAMPLE))


@in_turn("fit", ["exponential", "pareto", "gamma"])
@in_turn(("rule", "scale"), [("strom", "steady"), ("wgt", "drifting"), ("strom", "jumping")])
def test_fits_come_near_their_density(rule: str, scale: str, fit: str) -> None:
    result = densities(f"{rule}(sidco(0.01, fit='{fit}', every=10))", SCALES[scale])
    assert np.all(np.abs(np.log(result[-40:].mean(0) / 0.01)) < math.log(2))


@in_turn("rule", ["wgt", "qgt"])
@in_turn("scale", SCALES)
def test_an_allocation_gives_layers_their_shares_of_the_density(rule: str, scale: str) -> None:
    result = densities(f"{rule}(allocate(0.01, every=25))", SCALES[scale])[-40:].mean(0)
    assert 0.004 < float(result @ SIZES) / sum(SIZES) < 0.015
    assert result[0] > 2 * result[1]  # where the scale is ten times as large
    if scale != "falling":  # a layer that owes two elements an iteration is slow to follow down
        assert np.all(result > 0.01 / 32 / 2)


def test_an_allocation_is_decided_in_the_iteration_after_its_samples() -> None:
    """Until then each layer's curve, some 75 numbers, stands in its memory and in every checkpoint."""
    worker = workbench.Worker("wgt(allocate(0.02, every=20))", SIZES)
    holding = []
    for step in range(45):
        worker.step(gradients(step))
        curves = [memory.curve is not None for memory in worker.memories.values()]
        assert len(set(curves)) == 1
        if curves[0]:
            holding.append(step)
    assert holding == [0, 1, 2, 4, 8, 16, 20, 40]
    memory = worker.memories["p0"]
    assert (memory.elements, memory.target, memory.sampled) == (SIZES[0], memory.share, None)


@in_turn("start", [0.2, 100.0])
def test_dl4j_goes_towards_its_target_for_all_layers_together(start: float) -> None:
    worker, results = workbench.Worker(f"wgt(dl4j({start}, target=0.01))", SIZES), []
    for step in range(200):
        tallies = worker.step(gradients(step)).tallies
        results.append(sum(tally.sent for tally in tallies) / sum(SIZES))
        assert len({tally.tau for tally in tallies}) == 1
    assert 0.004 < np.mean(results[-40:]) < 0.025
    assert not 0.004 < np.mean(results[:5]) < 0.025


@in_turn(("early", "sent", "moves"), [(60, [60, 0], [2.0] * 64 + [0.5] * 75), (50, [100, 400], [1.0] * 139)])
def test_dl4j_counts_a_layer_that_is_trained_from_later_on(
    early: int, sent: list[int], moves: list[float]
) -> None:
    """Frozen layers come to be trained: 60 sent are more than half of 100, and less of 1,000; 500 are half.

    Elements are counted in iteration 64; where the target is met before and after, tau holds but in between.
    """
    policy = workbench.policy_of("dl4j(1.0, target=0.5, decay=0.5)")
    layers, memory = [Part("a", torch.zeros(100)), Part("b", torch.zeros(900))], Dl4jMemory()
    taus = []
    for step in range(140):
        parts = layers[:1] if step < 3 else layers
        turn = [memory] * len(parts)
        policy.decide(turn, step, {}, workbench.METHOD)
        taus.append(policy.taus(parts, step, turn, workbench.METHOD)[0])
        policy.note(parts, [early] if step < 3 else sent, step, turn)
    ratios = [after / before for before, after in pairwise(taus)]
    whole = slice(None) if early == 60 else np.r_[0:2, 70:139]
    assert np.array(ratios)[whole] == pytest.approx(np.array(moves)[whole])


def test_dl4j_steps_only_outside_of_its_range() -> None:
    worker = workbench.Worker("bgt(dl4j(0.5, low=0.1, high=0.2, decay=0.8))", (3000, 500))
    due, moves = 0.5, set()
    for step in range(60):
        scale = 1.0 if step < 30 else 0.1
        tallies = worker.step(gradients(step, scale, (3000, 500))).tallies
        assert [tally.tau for tally in tallies] == pytest.approx([due, due], rel=1e-5)
        share = sum(tally.sent for tally in tallies) / 3500
        move = 0.8 if share < 0.1 else 1 / 0.8 if share > 0.2 else 1.0
        due, moves = due * move, moves | {move}
    assert moves == {0.8, 1.0, 1 / 0.8}


@in_turn("policy", ["density(0.01, every=40)", "sidco(0.01, fit='exponential', every=40)"])
def test_a_layer_is_not_sampled_again_and_again(policy: str) -> None:
    """Though its scale jumps back and forth, so that each tau is far off in the next iteration."""
    worker, samples = workbench.Worker(f"wgt({policy})", SIZES), 0
    chosen = worker.config.policy
    worker.iteration = 40  # a run begins with more samples
    for step in range(40, 160):
        part = Part("p0", torch.zeros(SIZES[0]))
        memory = worker.memories.get("p0") or chosen.memory()
        samples += chosen.needs_sample(part, step, memory)
        worker.step(gradients(step, 1000.0 ** (step % 2)))
    assert 3 < samples <= 3 * (1 + chosen.again)


@in_turn("policy", POLICIES)
def test_policies_survive_zeros_and_steps_that_are_not_finite(policy: str) -> None:
    """Zeros that are held back, a NaN that is refused, and nothing but zeros; then all goes on."""
    worker = workbench.Worker(f"wgt({policy}, nonfinite='skip')", SIZES)
    for step in range(40):
        count = gradients(step)
        if step in (0, 5, 11):
            count[1][:] = 0
        if step in (3, 10):
            count[2][7] = np.nan
        if step in (7, 20):
            count = [np.zeros_like(one) for one in count]
        done = worker.step(count, hold_back_zeros=True)
        assert bool(done.refused) == (step in (3, 10))
        if done.refused:
            worker.put_back()
        values = [value for memory in worker.memories.values() for value in memory.plain().values()]
        assert all(
            math.isfinite(value) for value in np.hstack([value for value in values if value is not None])
        )
    if "dl4j" not in policy:  # which is not there yet
        assert 0.005 < sum(tally.sent for tally in done.tallies) / sum(SIZES) < 0.1
