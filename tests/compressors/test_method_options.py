"""What methods share: exempt parameters, thresholds, momentum, clip, decay."""

import itertools
import math
from copy import copy
from types import ModuleType

import numpy as np
import pytest
import torch
from cases import in_turn
from numpy.typing import NDArray

from taugrad.compressors.bucket.compressor import is_exempt
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method import read_config
from taugrad.compressors.method.methods import Exempt
from taugrad.compressors.method.policies import Warmup
from taugrad.compressors.rules.base import rule_of
from taugrad.compressors.tau.density import density_at

Floats = NDArray[np.float32]


def with_fields(line: str, fields: str) -> str:
    """The line of a method with more fields in its head."""
    head, *links = line.split(" | ")
    head = f"{head[:-1]}, {fields})" if head.endswith(")") else f"{head}({fields})"
    return " | ".join([head, *links])


def test_with_fields_adds_them() -> None:
    assert with_fields("linear | raw", "decay=0.5") == "linear(decay=0.5) | raw"
    assert with_fields("wgt(1) | raw", "decay=0.5") == "wgt(1, decay=0.5) | raw"


@in_turn("fields", ["exempt={'smaller_than': 42}", "exempt={'names': ['p1', 'p2']}"])
def test_exempt_parameters_are_sent_whole_and_exact(method: str, fields: str, workbench: ModuleType) -> None:
    worker, plain = workbench.Worker(with_fields(method, fields)), workbench.Worker(method)
    for seed in range(3):
        gradients = workbench.random_gradients(seed)
        step, compressed = worker.step(gradients), plain.step(gradients)
        for i in (1, 2):
            assert step.decoded[i].tobytes() == gradients[i].tobytes()
            tally = step.tallies[i]
            assert (tally.sent, tally.paper_bits) == (gradients[i].size, 32 * gradients[i].size)
            assert (tally.tau, tally.residual_squares) == (None, 0)
            assert worker.residuals[i] is None
        for i in (0, 3):  # the others do not notice
            assert step.decoded[i].tobytes() == compressed.decoded[i].tobytes()
            assert worker.residual(i).tobytes() == plain.residual(i).tobytes()


def test_a_bucket_may_be_exempt_as_a_whole(method: str, workbench: ModuleType) -> None:
    worker = workbench.Worker(with_fields(method, "exempt={'names': ['p*']}"), names=["p0", "p1", "p2", "p3"])
    worker.residuals = [None] * 4
    gradients = workbench.random_gradients(1)
    step = worker.step(gradients)
    assert all(found.tobytes() == due.tobytes() for found, due in zip(step.decoded, gradients, strict=True))
    assert len(step.payloads[0]) == 28 + 4 * sum(workbench.SIZES)


def test_names_and_sizes_that_are_exempt() -> None:
    exempt = Exempt(smaller_than=10, names=("*.bias", "norm?"))
    cases = {
        ("a", 9): True,
        ("a", 10): False,
        ("fc.bias", 99): True,
        ("norm1", 99): True,
        ("norm", 99): False,
    }
    assert {case: is_exempt(exempt, *case) for case in cases} == cases
    assert not is_exempt(Exempt(), "a", 0)


@in_turn("kind", ["wgt", "bgt", "qgt", "strom"])
def test_taus_by_layer(kind: str, workbench: ModuleType, transcription: ModuleType) -> None:
    line = f"{kind}(layers(0.5, patterns={{'p1': 0.25, '*3': schedule({{0: 0.1, 2: 1.0}}, between='step')}}))"
    worker = workbench.Worker(line)
    kept = [np.zeros(size, np.float32) for size in workbench.SIZES]
    for iteration in range(4):
        gradients = workbench.random_gradients(iteration)
        step = worker.step(gradients)
        taus = np.array([0.5, 0.25, 0.5, 0.1 if iteration < 2 else 1.0], np.float32)
        assert [tally.tau for tally in step.tallies] == taus.tolist()
        for i, gradient in enumerate(gradients):
            outcome = transcription.run(kind, kept[i], gradient, taus[i])
            kept[i] = outcome.kept
            assert step.decoded[i].tobytes() == (outcome.dense() + np.float32(0)).tobytes()
            assert worker.residual(i).tobytes() == outcome.kept.tobytes()
        if kind != "wgt":  # tau is what a value means
            (update,) = step.incoming[0]
            assert update.taus.tolist() == taus.tolist()


@in_turn(
    ("between", "expected"),
    [
        ("step", [1.0, 1.0, 1.0, 1.0, 4.0, 4.0, 16.0, 16.0]),
        ("linear", [1.0, 1.0, 2.0, 3.0, 4.0, 10.0, 16.0, 16.0]),
        ("exponential", [1.0, 1.0, 4 ** (1 / 3), 4 ** (2 / 3), 4.0, 8.0, 16.0, 16.0]),
    ],
)
def test_schedules(between: str, expected: list[float], workbench: ModuleType) -> None:
    worker = workbench.Worker(f"bgt(schedule({{1: 1.0, 4: 4.0, 6: 16.0}}, between='{between}'))")
    found = [worker.step(workbench.random_gradients(seed)).tallies[0].tau for seed in range(8)]
    assert found == pytest.approx(expected, rel=1e-6)


@in_turn("line", ["wgt(density({}))", "bgt(density({}))", "topk({}, sampled=True)"])
@in_turn("density", [0.001, 0.01, 0.1])
def test_densities_are_met_within_the_error_of_a_sample(
    line: str, density: float, workbench: ModuleType
) -> None:
    n, sample = 200_000, 2**14
    worker = workbench.Worker(line.format(density), (n,))
    rng = np.random.default_rng(5)
    for _ in range(3):
        step = worker.step([rng.standard_normal(n).astype(np.float32)])
        sent = step.tallies[0].sent
        # A sample's quantile is off by as much as the number above it in the sample: 5 deviations.
        deviation = math.sqrt(density * (1 - density) / sample)
        assert abs(sent / n - density) <= 5 * deviation + 1.5 / sample


def test_a_density_on_few_elements_is_exact(workbench: ModuleType) -> None:
    worker = workbench.Worker("wgt(density(0.07))", (100, 1000))
    step = worker.step(workbench.random_gradients(1, (100, 1000)))
    assert [tally.sent for tally in step.tallies] == [7, 70]


def test_a_density_is_sampled_every_few_iterations_and_remembered(workbench: ModuleType) -> None:
    line = "wgt(density(0.05, every=7))"
    worker = workbench.Worker(line, (500, 400))
    gradients = (workbench.random_gradients(seed, (500, 400), scale=1 + seed) for seed in range(22))
    steps = [worker.step(each) for each in gradients]
    taus = [[tally.tau for tally in step.tallies] for step in steps]
    sampled = (0, 1, 2, 4, 7, 14, 21)
    # In between tau is corrected by what was sent, every other iteration, where that is off by more than a
    # tenth and chance.
    corrected = 0
    for i, iteration in itertools.product(range(2), set(range(22)) - set(sampled)):
        before, n = steps[iteration - 1].tallies[i], worker.sizes[i]
        found = (before.sent + 8) / (n + 8 / 0.05)
        off = abs(before.sent - 0.05 * n) > 0.1 * 0.05 * n + 2 * math.sqrt(0.05 * n) + 1
        moves = off and (iteration - 1) % 7 in (0, 2, 4, 6)
        due = before.tau * (math.sqrt(math.log(0.05) / math.log(found)) if moves else 1)
        corrected += moves
        assert taus[iteration][i] == pytest.approx(due, rel=1e-6)
    assert corrected > 3
    for iteration in sampled:
        assert [tally.sent for tally in steps[iteration].tallies] == [25, 20]
    policy = worker.compressor.rule.policy
    for memory in worker.memories.values():
        assert memory.target == 0.05
        due = [policy.needs_sample(None, iteration, memory) for iteration in (26, 27, 28)]
        assert due == [False, False, True]
    # What is remembered is all there is: another worker goes on from it, in other buckets.
    other = workbench.Worker(line, (500, 400), buckets=[[1], [0]])
    other.context.memories = {name: copy(memory) for name, memory in worker.memories.items()}
    other.context.iteration = worker.context.iteration
    other.residuals = [residual.clone() for residual in worker.residuals]
    for seed in range(22, 30):
        gradients = workbench.random_gradients(seed, (500, 400))
        found, due = other.step(gradients), worker.step(gradients)
        assert [tally.tau for tally in found.tallies] == [tally.tau for tally in due.tallies]
    assert other.memories == worker.memories


def test_a_sample_is_taken_only_where_it_decides_what_is_sent() -> None:
    part = Part("p0", torch.ones(100), torch.zeros(100))
    for line, needed in (
        ("topk(0.01, sampled=True)", True),
        ("topk(0.01)", False),
        ("chunked_topk(keep=4) | chunked", False),
        ("strom(density(0.01))", True),
        ("strom(0.01)", False),
    ):
        assert rule_of(read_config(line)).needs_sample(part, 0, {}) is needed, line


def test_a_warmup_falls_in_stages_to_the_target() -> None:
    """Deep Gradient Compression, section 3.3: 25%, 6.25%, 1.5625%, 0.4%, then 0.1%, one stage an epoch."""
    warmup = Warmup(iterations=40, start=0.25, stages=4)
    found = [density_at(0.001, warmup, iteration) for iteration in range(60)]
    ratio = (0.001 / 0.25) ** 0.25
    due = [0.25 * ratio**stage for stage in range(4) for _ in range(10)] + [0.001] * 20
    assert found == pytest.approx(due, rel=1e-12)
    assert density_at(0.001, None, 0) == 0.001
    assert found[::10][:4] == pytest.approx([0.25, 0.0629, 0.0158, 0.00398], rel=0.01)


@in_turn("line", ["topk(0.01, warmup={})", "wgt(density(0.01, every=1, warmup={}))"])
def test_methods_warm_up(line: str, workbench: ModuleType) -> None:
    worker = workbench.Worker(line.replace("{}", "{'iterations': 4, 'start': 0.16, 'stages': 2}"), (1000,))
    sent = [worker.step(workbench.random_gradients(seed, (1000,))).tallies[0].sent for seed in range(6)]
    assert sent == [160, 160, 40, 40, 10, 10]


@in_turn("kind", ["wgt", "bgt", "qgt", "strom"])
def test_momentum_is_corrected_as_deep_gradient_compression_says(
    kind: str, workbench: ModuleType, transcription: ModuleType
) -> None:
    worker = workbench.Worker(f"{kind}(0.5, momentum=0.9)")
    slow = [
        transcription.MomentumCorrection(
            kind, np.float32(0.5), 0.9, np.zeros(size, np.float32), np.zeros(size, np.float32)
        )
        for size in workbench.SIZES
    ]
    for seed in range(12):
        gradients = workbench.random_gradients(seed, scale=0.1)
        step = worker.step(gradients)
        for i, gradient in enumerate(gradients):
            due = slow[i].step(gradient)
            assert np.array_equal(step.decoded[i], due)
            assert np.array_equal(worker.residual(i), slow[i].accumulated)
            assert np.array_equal(worker.velocities[i].numpy(), slow[i].velocity)


@in_turn("line", ["topk(0.1, momentum=0.5)", "chunked_topk(2, chunk=8, momentum=0.5, decay=1)"])
def test_momentum_of_what_is_sent_begins_anew(line: str, workbench: ModuleType) -> None:
    worker = workbench.Worker(line)
    velocity = [np.zeros(size, np.float32) for size in workbench.SIZES]
    for seed in range(5):
        gradients = workbench.random_gradients(seed)
        step = worker.step(gradients)
        for i, gradient in enumerate(gradients):
            velocity[i] = np.float32(0.5) * velocity[i] + gradient
            velocity[i][step.decoded[i] != 0] = 0
            assert np.array_equal(worker.velocities[i].numpy(), velocity[i])


@in_turn("kind", ["wgt", "bgt", "qgt", "strom"])
def test_clip_cuts_the_residual_every_few_iterations(
    kind: str, workbench: ModuleType, transcription: ModuleType
) -> None:
    tau, most = np.float32(0.01), np.float32(0.03)
    worker = workbench.Worker(f"{kind}(0.01, clip={{'every': 3, 'to': 3.0}})")
    kept = [np.zeros(size, np.float32) for size in workbench.SIZES]
    for iteration in range(9):
        gradients = workbench.random_gradients(iteration)
        step = worker.step(gradients)
        for i, gradient in enumerate(gradients):
            outcome = transcription.run(kind, kept[i], gradient, tau)
            kept[i] = outcome.kept
            if iteration % 3 == 2:
                kept[i] = np.clip(kept[i], -most, most)
            assert np.array_equal(worker.residual(i), kept[i])
            assert step.tallies[i].residual_squares == pytest.approx(
                float(np.square(kept[i], dtype=np.float64).sum()), rel=1e-4, abs=1e-12
            )


def test_topk_clips_by_the_smallest_magnitude_sent(workbench: ModuleType) -> None:
    worker = workbench.Worker("topk(0.1, clip={'every': 1, 'to': 0.5})")
    step = worker.step(workbench.random_gradients(1))
    for i in (0, 1, 3):
        smallest = np.abs(step.decoded[i][step.decoded[i] != 0]).min()
        assert step.tallies[i].tau == smallest
        assert np.abs(worker.residual(i)).max() == np.float32(0.5) * smallest


@in_turn("decay", [0.5, 0.0])
def test_decay_is_taken_off_the_residual_before_the_gradient_comes(
    method: str, decay: float, workbench: ModuleType
) -> None:
    line = with_fields(method.replace(", decay=1", "").replace("(decay=1)", ""), f"decay={decay}")
    worker, twin = workbench.Worker(line), workbench.Worker(method)
    for seed in range(4):
        for i, residual in enumerate(twin.residuals):
            kept = worker.residuals[i]
            assert residual is not None
            residual.copy_(torch.zeros_like(residual) if kept is None else kept * decay)
        gradients = workbench.random_gradients(seed)
        step, due = worker.step(gradients), twin.step(gradients)
        for i in range(4):
            assert np.array_equal(step.decoded[i], due.decoded[i])
            if worker.residuals[i] is not None:
                assert np.array_equal(worker.residual(i), twin.residual(i))
    forgets = decay == 0 and not worker.compressor.rule.needs_residual
    assert (worker.residuals[0] is None) == forgets
