"""What methods share: exempt parameters, thresholds, momentum, clip, decay."""

from collections.abc import Callable
from functools import partial

import numpy as np
import oracles
import pytest
import torch
import workbench
from cases import in_turn
from workbench import with_fields

from taugrad.compressors.bucket.compressor import Compressor, Worker, is_exempt
from taugrad.compressors.bucket.layout import cut
from taugrad.compressors.methods import read_config
from taugrad.compressors.methods.base import Exempt
from taugrad.compressors.ops.cpu.passes import CPU

RULES = ("wgt", "bgt", "qgt", "strom")


@in_turn("fields", ["exempt={'smaller_than': 42}", "exempt={'names': ['p1', 'p2']}"])
def test_exempt_parameters_are_sent_whole_and_exact(method: str, fields: str) -> None:
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


def test_a_bucket_may_be_exempt_as_a_whole(method: str) -> None:
    worker = workbench.Worker(with_fields(method, "exempt={'names': ['p*']}"), names=["p0", "p1", "p2", "p3"])
    gradients = workbench.random_gradients(1)
    step = worker.step(gradients)
    assert all(actual.tobytes() == due.tobytes() for actual, due in zip(step.decoded, gradients, strict=True))
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


def test_a_slice_is_exempt_where_its_parameter_is() -> None:
    sizes, method = {"large": 9, "small": 5}, read_config("topk(0.5, exempt={'smaller_than': 6})")
    for shard in cut(sizes, 4):
        layout = Compressor(method, Worker(CPU), shard).layout  # type: ignore[arg-type]
        assert [shard.names[ordinal] for ordinal in layout.whole.ordinals] == [
            name for name in shard.names if name == "small"
        ]


@in_turn("line", ["topk(0.01, warmup={})", "wgt(density(0.01, every=1, warmup={}))"])
def test_methods_warm_up(line: str) -> None:
    worker = workbench.Worker(line.replace("{}", "{'iterations': 4, 'start': 0.16, 'stages': 2}"), (1000,))
    sent = [worker.step(workbench.random_gradients(seed, (1000,))).tallies[0].sent for seed in range(6)]
    assert sent == [160, 160, 40, 40, 10, 10]


@in_turn(
    ("line", "select"),
    [
        *((f"{rule}(0.5{{}})", partial(oracles.threshold, rule, tau=0.5)) for rule in RULES),
        ("topk(0.1{})", lambda kept, given: oracles.largest(kept, given, max(1, kept.size // 10))),
        (
            "chunked_topk(2, chunk=8, quantize=None, decay=1{})",
            partial(oracles.largest_of_chunks, chunk=8, keep=2),
        ),
    ],
    ids=[*RULES, "topk", "chunked_topk"],
)
def test_momentum_is_corrected_as_deep_gradient_compression_says(
    line: str, select: Callable[..., oracles.Sent]
) -> None:
    """Section 3.2 and Algorithm 3: u = m u + g; v = v + u; what is sent leaves v, and its u begins anew."""
    worker = workbench.Worker(line.replace("{}", ", momentum=0.9"))
    velocities, accumulated = ([np.zeros(n, np.float32) for n in workbench.SIZES] for _ in range(2))
    for seed in range(12):
        gradients = workbench.random_gradients(seed, scale=0.1)
        step = worker.step(gradients)
        worker.commit()
        for i, gradient in enumerate(gradients):
            velocities[i] = np.float32(0.9) * velocities[i] + gradient
            due = select(accumulated[i], velocities[i])
            accumulated[i] = due.residual
            velocities[i][due.positions] = 0
            assert np.array_equal(step.decoded[i], due.dense)
            assert np.array_equal(worker.residual(i), accumulated[i])
            assert np.array_equal(worker.velocities[i].numpy(), velocities[i])


@in_turn("kind", RULES)
def test_clip_cuts_the_residual_every_few_iterations(kind: str) -> None:
    tau, most = np.float32(0.01), np.float32(0.03)
    worker = workbench.Worker(f"{kind}(0.01, clip={{'every': 3, 'to': 3.0}})")
    kept = [np.zeros(size, np.float32) for size in workbench.SIZES]
    for iteration in range(9):
        gradients = workbench.random_gradients(iteration)
        step = worker.step(gradients)
        for i, gradient in enumerate(gradients):
            kept[i] = oracles.threshold(kind, kept[i], gradient, tau).residual
            if iteration % 3 == 2:
                kept[i] = np.clip(kept[i], -most, most)
            assert np.array_equal(worker.residual(i), kept[i])
            assert step.tallies[i].residual_squares == pytest.approx(
                float(np.square(kept[i], dtype=np.float64).sum()), rel=1e-4, abs=1e-12
            )


def test_topk_clips_by_the_smallest_magnitude_sent() -> None:
    worker = workbench.Worker("topk(0.1, clip={'every': 1, 'to': 0.5})")
    step = worker.step(workbench.random_gradients(1))
    for i in (0, 1, 3):
        smallest = np.abs(step.decoded[i][step.decoded[i] != 0]).min()
        assert step.tallies[i].tau == smallest
        assert np.abs(worker.residual(i)).max() == np.float32(0.5) * smallest
    gradients = [np.full(size, 3, np.float32) for size in workbench.SIZES]
    gradients[0][5] = np.nan
    before = worker.residual(0)
    worker.step(gradients)  # sends nothing: there is no smallest magnitude
    assert np.array_equal(np.delete(worker.residual(0), 5), np.delete(before + np.float32(3), 5))


@in_turn("decay", [0.5, 0.0])
def test_decay_is_taken_off_the_residual_before_the_gradient_comes(method: str, decay: float) -> None:
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
    forgets = decay == 0 and not worker.config.needs_residual
    assert (worker.residuals[0] is None) == forgets
