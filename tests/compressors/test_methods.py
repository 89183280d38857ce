"""One suite for every method: what is listed in methods.ALONE is tested in the same ways."""

from typing import Any

import messages
import numpy as np
import oracles
import pytest
import torch
from cases import in_turn
from methods import ALONE, MESSAGES
from numpy.typing import NDArray
from workbench import SIZES, Step, Worker, other_defaults, random_gradients, with_fields

from taugrad.compressors.fields import QUANTIZERS, RULES
from taugrad.compressors.methods import QuantizedGradient, read_config
from taugrad.compressors.methods.chunked_topk import ChunkedTopK
from taugrad.compressors.methods.random_k import RandomK
from taugrad.compressors.methods.topk import TopK
from taugrad.compressors.methods.visible import Visible, VisibleStrom
from taugrad.compressors.ops.cpu.passes import CPU, CpuOps
from taugrad.compressors.ops.interface import LARGEST_TAU, SMALLEST_TAU

Floats = NDArray[np.float32]


def test_every_method_and_every_link_is_listed() -> None:
    configs: list[Any] = [read_config(line) for line in ALONE]
    assert {config.kind for config in configs} == set(RULES) - {"none", "powersgd"}
    assert {config.quantizer.kind for config in configs if config.quantizer is not None} == set(QUANTIZERS)


def groupings(count: int) -> list[list[list[int]]]:
    """All in one bucket; each in its own; two and two, the last ones first, as DDP orders them."""
    reverse = list(range(count))[::-1]
    return [[list(range(count))], [[i] for i in range(count)], [reverse[:2], reverse[2:]], [reverse]]


def selected(
    config: Any,
    residual: Floats,
    gradient: Floats,
    tau: float,
    name: str,
    iteration: int,
    weights: Floats,
) -> oracles.Sent:
    """What a sparse method takes out of one parameter."""
    if isinstance(config, Visible | VisibleStrom):
        return oracles.visible(residual, gradient, weights, getattr(config, "tau", None))
    if isinstance(config, RandomK):
        key, _ = oracles.key_of(config.seed, iteration, 0, name)
        return oracles.drawn(residual, gradient, max(1, int(config.density * residual.size)), key)
    if isinstance(config, ChunkedTopK):
        return oracles.largest_of_chunks(residual, gradient, config.chunk, config.keep)
    if isinstance(config, TopK) and not config.sampled:
        return oracles.largest(residual, gradient, max(1, int(config.density * residual.size)))
    return oracles.threshold("wgt" if config.kind == "topk" else config.kind, residual, gradient, tau)


def quantized(quantizer: Any, residual: Floats, gradient: Floats, *drawn: Any) -> Floats:
    """What a quantizer makes of a sum; the kernels' own tests say that this is right."""
    made = messages.quantized(quantizer, residual.copy(), gradient, *drawn)
    return messages.update_of(quantizer.makes, made).amounts(CPU)


@in_turn("scale", [1e-3, 0.4, 1e4])
def test_buckets_hold_what_the_definition_says_of_each_parameter(method: str, scale: float) -> None:
    """Whatever the buckets. The definition knows one parameter at a time, and neither buckets nor messages.

    What is sent and what is kept is the sum, to the bit: nothing is lost.
    """
    workers = [Worker(method, buckets=buckets) for buckets in groupings(len(SIZES))]
    config = workers[0].config
    kept = [np.zeros(size, np.float32) for size in SIZES]
    for seed in range(6):
        gradients = random_gradients(seed, scale=scale)
        steps = [worker.step(gradients) for worker in workers]
        for i, gradient in enumerate(gradients):
            tallies = [step.tallies[i] for step in steps]
            if not hasattr(config, "codec") and not hasattr(config, "quantize"):
                due = quantized(config, kept[i], gradient, f"p{i}", seed)
            else:
                name, weights = f"p{i}", workers[0].weights[f"p{i}"].numpy()
                sent = selected(config, kept[i], gradient, tallies[0].tau or 1.0, name, seed, weights)
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
            told = [
                (tally.name, tally.elements, tally.sent, tally.tau, tally.paper_bits) for tally in tallies
            ]
            assert told == [(f"p{i}", gradient.size, *told[0][2:])] * len(workers)


@in_turn("line", MESSAGES)
def test_messages_depend_neither_on_torchs_defaults_nor_on_the_type_of_gradients(line: str) -> None:
    worker, others = Worker(line), [Worker(line), Worker(line), Worker(line, dtype=torch.float64)]
    for seed in range(2):
        gradients = random_gradients(seed)
        payloads = worker.step(gradients).payloads
        for other, default in zip(others, (torch.float64, torch.bfloat16, torch.float32), strict=True):
            with other_defaults(default):
                assert other.step(gradients).payloads == payloads
            assert other.state == worker.state


def test_gradients_of_zero_are_held_back_when_asked(method: str) -> None:
    worker, twin = Worker(method), Worker(method)
    gradients = random_gradients(1)
    for worker_ in (worker, twin):
        worker_.step(gradients, hold_back_zeros=True)
    before = [worker.residual(i) for i in range(4)]
    zeros = [np.zeros_like(gradients[0]), gradients[1], np.full(1, -0.0, np.float32), gradients[3]]
    step = worker.step(zeros, hold_back_zeros=True)
    for i in (0, 2):
        assert step.tallies[i].sent == 0
        if method.startswith("topk"):  # its tau is the smallest magnitude sent
            assert step.tallies[i].tau is None
        assert not step.decoded[i].any()
        assert worker.residual(i).tobytes() == before[i].tobytes()
        assert step.tallies[i].residual_squares == pytest.approx(
            float(np.square(before[i], dtype=np.float64).sum())
        )
    alone = twin.step(zeros)  # what is not zero is sent as ever
    for i in (1, 3):
        assert step.decoded[i].tobytes() == alone.decoded[i].tobytes()
    all_zero = [np.zeros(size, np.float32) for size in SIZES]
    held = worker.step(all_zero, hold_back_zeros=True)
    assert [tally.sent for tally in held.tallies] == [0] * 4
    assert not any(tensor.any() for tensor in held.decoded)


def test_what_is_kept_is_sent_behind_a_gradient_of_zero_unless_it_is_held_back() -> None:
    for held in (False, True):
        worker = Worker("strom(0.25)")
        worker.step([np.ones(n, np.float32) for n in SIZES])  # takes 0.25 out, and keeps 0.75
        sent = worker.step([np.zeros(n, np.float32) for n in SIZES], hold_back_zeros=held)
        assert [tally.sent for tally in sent.tallies] == ([0] * len(SIZES) if held else list(SIZES))


def test_what_is_held_back_does_not_lose_its_momentum() -> None:
    worker = Worker("wgt(0.02, momentum=0.9)")
    gradients = random_gradients(1)
    worker.step(gradients, hold_back_zeros=True)
    worker.commit()
    before = [velocity.numpy().copy() for velocity in worker.velocities]
    assert before[0].any()
    step = worker.step([np.zeros_like(gradients[0]), *gradients[1:]], hold_back_zeros=True)
    worker.commit()
    assert np.array_equal(worker.velocities[0].numpy(), before[0])
    for i in (1, 2, 3):  # what is sent has none any more
        due = np.where(step.decoded[i] == 0, np.float32(0.9) * before[i] + gradients[i], 0)
        assert np.array_equal(worker.velocities[i].numpy(), due)
    before = [velocity.numpy().copy() for velocity in worker.velocities]
    worker.step(gradients)
    worker.put_back()  # nor does what is put back
    for velocity, was, gradient in zip(worker.velocities, before, gradients, strict=True):
        assert np.array_equal(velocity.numpy(), np.float32(0.9) * was + gradient)


def test_a_step_that_is_left_out_is_put_back(method: str) -> None:
    worker = Worker(method)
    for seed in range(4):
        gradients = random_gradients(seed)
        before = [worker.residual(i) for i in range(4)]
        step = worker.step(gradients)
        after = [worker.residual(i) for i in range(4)]
        worker.put_back()
        for i, gradient in enumerate(gradients):
            assert np.array_equal(worker.residual(i), after[i] + step.decoded[i])
            np.testing.assert_allclose(worker.residual(i), before[i] + gradient, rtol=1e-6, atol=1e-6)
        restored = worker.state
        worker.put_back()  # there is nothing more
        assert worker.state == restored
    worker.step(random_gradients(9))
    worker.commit()
    arrived = worker.state
    worker.put_back()
    assert worker.state == arrived


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
    assert (Worker(line).residuals[0] is not None) == keeps


# NaN and Inf in a gradient: every method refuses the bucket, says where, and loses nothing.

NAN, INF = float("nan"), float("inf")
LARGEST = float(np.finfo(np.float32).max)


def gradients_with(value: float, ordinals: list[int]) -> list[Floats]:
    gradients: list[Floats] = random_gradients(7)
    for ordinal in ordinals:
        gradients[ordinal][-1] = value
    return gradients


def check_refused(worker: Worker, before: list[Floats], gradients: list[Floats], step: Step) -> None:
    """Nothing was sent, and residuals gained every finite element and no other."""
    for i, gradient in enumerate(gradients):
        with np.errstate(all="ignore"):
            total = before[i] + gradient
        due = np.where(np.isfinite(total), total, before[i])
        assert not step.decoded[i].any()
        if worker.residuals[i] is None:
            continue  # it is sent whole
        actual = worker.residual(i)
        np.testing.assert_allclose(actual, due, rtol=1e-6, atol=1e-6)
        assert np.isfinite(actual).all()
        broken_N = ~np.isfinite(total)
        assert actual[broken_N].tobytes() == before[i][broken_N].tobytes()
        tally = step.tallies[i]
        assert (tally.name, tally.elements, tally.sent) == (f"p{i}", gradient.size, 0)
        squares = float(np.square(actual, dtype=np.float64).sum())
        assert tally.residual_squares == pytest.approx(squares, rel=1e-4)


@in_turn(
    ("value", "ordinals"),
    [(NAN, [0]), (INF, [1]), (-INF, [2]), (NAN, [3]), (INF, [1, 3]), (-INF, [0, 1, 2, 3])],
)
@in_turn("exempt", [[], ["p1", "p2"]])
def test_a_refusal_names_the_first_parameter_and_loses_nothing(
    method: str, exempt: list[str], value: float, ordinals: list[int]
) -> None:
    worker = Worker(with_fields(method, f"exempt={{'names': {exempt}}}"))
    worker.step(random_gradients(1))
    before = [worker.residual(i) for i in range(4)]
    gradients = gradients_with(value, ordinals)
    step = worker.step(gradients)
    assert step.refused == [ordinals[0]]
    assert len(step.payloads[0]) == 28
    check_refused(worker, before, gradients, step)
    worker.put_back()  # which took nothing out
    check_refused(worker, before, gradients, step)
    after = worker.step(random_gradients(2))
    assert after.refused == []


def test_a_sum_that_overflows_is_refused(method: str) -> None:
    worker = Worker(method)
    for residual in worker.residuals:
        residual[-1] = LARGEST
    before = [worker.residual(i) for i in range(4)]
    gradients = [np.zeros(size, np.float32) for size in SIZES]
    gradients[3][:] = 0.01
    gradients[3][-1] = LARGEST
    step = worker.step(gradients)
    assert step.refused == [3]
    for i in range(4):
        assert np.isfinite(worker.residual(i)).all()
    assert worker.residual(3)[-1] == before[3][-1]


def test_zeros_with_a_nan_are_not_held_back(method: str) -> None:
    worker = Worker(method)
    gradients = [np.zeros(size, np.float32) for size in SIZES]
    gradients[1][3] = NAN
    assert worker.step(gradients, hold_back_zeros=True).refused == [1]


def test_momentum_stays_finite_and_the_refusal_names_the_parameter() -> None:
    worker = Worker("wgt(0.5, momentum=0.9)")
    worker.step(random_gradients(1))
    before = [velocity.numpy().copy() for velocity in worker.velocities]
    step = worker.step(gradients_with(INF, [1]))
    assert step.refused == [1]
    assert all(np.isfinite(velocity.numpy()).all() for velocity in worker.velocities)
    assert all(np.isfinite(worker.residual(i)).all() for i in range(4))
    assert worker.velocities[1].numpy()[-1] == before[1][-1]


class Undefined(CpuOps):
    """What a pass does not write is 0xFF, and no symbol may lie behind the end of its table."""

    def empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return np.full(size * np.dtype(dtype).itemsize, 0xFF, np.uint8).view(dtype)

    def write_values(
        self, form: str, symbols: NDArray[Any], block: int, tables: tuple[Any, ...], *where: Any
    ) -> None:
        if form == "quantile":
            assert int(symbols.max()) < tables[1].size // tables[0].size
        super().write_values(form, symbols, block, tables, *where)


@in_turn("line", ["quantile(3, block=100)", "quantile(10)"])
def test_what_a_refused_parameter_has_no_symbols_for_is_not_looked_up(line: str) -> None:
    worker = Worker(line, ops=Undefined())
    gradients = random_gradients(1)
    gradients[1][:] = NAN
    assert worker.step(gradients).refused == [1]
