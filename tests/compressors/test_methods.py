"""One suite for every method: what is listed in methods.ALONE is tested in the same ways."""

from typing import Any

import messages
import numpy as np
import oracles
import pytest
import workbench
from cases import in_turn
from methods import ALONE
from numpy.typing import NDArray

from taugrad.compressors.method import LARGEST_TAU, SMALLEST_TAU, QuantizedGradient, read_config
from taugrad.compressors.method.registry import QUANTIZERS, RULES
from taugrad.compressors.method.sparse import ChunkedTopK, TopK
from taugrad.compressors.ops.cpu.passes import CPU, CpuOps

Floats = NDArray[np.float32]


def test_every_method_and_every_link_is_listed() -> None:
    configs: list[Any] = [read_config(line) for line in ALONE.values()]
    assert {config.kind for config in configs} == set(RULES) - {"none", "powersgd"}
    assert {config.quantizer.kind for config in configs if config.quantizer is not None} == set(QUANTIZERS)


def groupings(count: int) -> list[list[list[int]]]:
    """All in one bucket; each in its own; two and two, the last ones first, as DDP orders them."""
    reverse = list(range(count))[::-1]
    return [[list(range(count))], [[i] for i in range(count)], [reverse[:2], reverse[2:]], [reverse]]


def test_runs_and_threads_make_no_difference(method: str) -> None:
    sizes = (140_000, 33, 70_001)
    one, other = (workbench.Worker(method, sizes, ops=CpuOps(threads)) for threads in (1, 2))
    for seed in range(2):
        gradients = workbench.random_gradients(seed, sizes)
        assert one.step(gradients).payloads == other.step(gradients).payloads
        assert one.state == other.state


def selected(config: Any, residual: Floats, gradient: Floats, tau: float) -> oracles.Sent:
    """What a sparse method takes out of one parameter."""
    if isinstance(config, ChunkedTopK):
        return oracles.largest_of_chunks(residual, gradient, config.chunk, config.keep)
    if isinstance(config, TopK) and not config.sampled:
        return oracles.largest(residual, gradient, max(1, int(config.density * residual.size)))
    return oracles.threshold("wgt" if config.kind == "topk" else config.kind, residual, gradient, tau)


def quantized(quantizer: Any, residual: Floats, gradient: Floats) -> Floats:
    """What a quantizer makes of a sum; the kernels' own tests say that this is right."""
    made = messages.quantized(quantizer, residual.copy(), gradient)
    return messages.update_of(quantizer.makes, made).amounts(CPU)


@in_turn("scale", [1e-3, 0.4, 1e4])
def test_buckets_hold_what_the_definition_says_of_each_parameter(method: str, scale: float) -> None:
    """Whatever the buckets. The definition knows one parameter at a time, and neither buckets nor messages.

    What is sent and what is kept is the sum, to the bit: nothing is lost.
    """
    workers = [workbench.Worker(method, buckets=buckets) for buckets in groupings(len(workbench.SIZES))]
    config = workers[0].config
    kept = [np.zeros(size, np.float32) for size in workbench.SIZES]
    for seed in range(6):
        gradients = workbench.random_gradients(seed, scale=scale)
        steps = [worker.step(gradients) for worker in workers]
        for i, gradient in enumerate(gradients):
            tallies = [step.tallies[i] for step in steps]
            if not hasattr(config, "codec") and not hasattr(config, "quantize"):
                due = quantized(config, kept[i], gradient)
            else:
                sent = selected(config, kept[i], gradient, tallies[0].tau or 1.0)
                due, amounts = np.zeros_like(gradient), sent.amounts
                if getattr(config, "quantize", None) is not None and sent.positions.size:
                    amounts = quantized(config.quantize, np.zeros_like(amounts), amounts)
                due[sent.positions] = amounts
                assert tallies[0].sent == sent.positions.size
            kept[i] = (kept[i] + gradient) - due
            squares = float(np.square(kept[i], dtype=np.float64).sum())
            for worker, step, tally in zip(workers, steps, tallies, strict=True):
                assert np.array_equal(step.decoded[i], due)
                assert np.array_equal(worker.residual(i), kept[i])
                assert tally.residual_squares == pytest.approx(squares, rel=1e-4, abs=1e-30)
            told = [(each.name, each.elements, each.sent, each.tau, each.paper_bits) for each in tallies]
            assert told == [(f"p{i}", gradient.size, *told[0][2:])] * len(workers)


def test_gradients_of_zero_are_held_back_when_asked(method: str) -> None:
    worker, twin = workbench.Worker(method), workbench.Worker(method)
    gradients = workbench.random_gradients(1)
    for each in (worker, twin):
        each.step(gradients, hold_back_zeros=True)
    before = [worker.residual(i) for i in range(4)]
    zeros = [np.zeros_like(gradients[0]), gradients[1], np.full(1, -0.0, np.float32), gradients[3]]
    step = worker.step(zeros, hold_back_zeros=True)
    for i in (0, 2):
        assert step.tallies[i].sent == 0
        assert not step.decoded[i].any()
        assert worker.residual(i).tobytes() == before[i].tobytes()
        assert step.tallies[i].residual_squares == pytest.approx(
            float(np.square(before[i], dtype=np.float64).sum())
        )
    alone = twin.step(zeros)  # what is not zero is sent as ever
    for i in (1, 3):
        assert step.decoded[i].tobytes() == alone.decoded[i].tobytes()
    all_zero = [np.zeros(size, np.float32) for size in workbench.SIZES]
    held = worker.step(all_zero, hold_back_zeros=True)
    assert [tally.sent for tally in held.tallies] == [0] * 4
    assert not any(each.any() for each in held.decoded)


def test_what_is_held_back_does_not_lose_its_momentum() -> None:
    worker = workbench.Worker("wgt(0.02, momentum=0.9)")
    gradients = workbench.random_gradients(1)
    worker.step(gradients, hold_back_zeros=True)
    before = [each.numpy().copy() for each in worker.velocities]
    assert before[0].any()
    step = worker.step([np.zeros_like(gradients[0]), *gradients[1:]], hold_back_zeros=True)
    assert np.array_equal(worker.velocities[0].numpy(), before[0])
    for i in (1, 2, 3):  # what is sent has none any more
        due = np.where(step.decoded[i] == 0, np.float32(0.9) * before[i] + gradients[i], 0)
        assert np.array_equal(worker.velocities[i].numpy(), due)


def test_a_step_that_is_left_out_is_put_back(method: str) -> None:
    worker = workbench.Worker(method)
    for seed in range(4):
        gradients = workbench.random_gradients(seed)
        before = [worker.residual(i) for i in range(4)]
        step = worker.step(gradients)
        after = [worker.residual(i) for i in range(4)]
        worker.put_back(step)
        for i, gradient in enumerate(gradients):
            assert np.array_equal(worker.residual(i), after[i] + step.decoded[i])
            np.testing.assert_allclose(worker.residual(i), before[i] + gradient, rtol=1e-6, atol=1e-6)


def test_every_tau_that_is_allowed_leaves_every_level_finite() -> None:
    assert np.isfinite(np.float32(255) * np.float32(LARGEST_TAU))
    assert QuantizedGradient(tau=LARGEST_TAU).tau == LARGEST_TAU
    assert np.float32(SMALLEST_TAU) >= np.finfo(np.float32).tiny
    for tau in (0.0, -1.0, float("nan"), float("inf"), 2 * LARGEST_TAU, SMALLEST_TAU / 2):
        with pytest.raises(ValueError, match=r"greater than 0|not a threshold that float32 can hold"):
            QuantizedGradient(tau=tau)


@in_turn("line, keeps", [("linear(8, decay=0)", False), ("linear(8)", True), ("strom(0.1, decay=0)", True)])
def test_only_what_is_added_to_the_next_gradient_takes_memory(line: str, keeps: bool) -> None:
    """A dense rule without a residual needs none; a sparse one builds its sum in it."""
    assert workbench.Worker(line).compressor.keeps_residuals == keeps
