"""Methods of the field's surveys, against slow transcriptions of their papers, and their messages' bytes."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import oracles
import pytest
import torch
from cases import in_turn
from workbench import SIZES, Floats, Worker, random_gradients

from taugrad.compressors.bucket import compressor
from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import ParameterSlice, Shard
from taugrad.compressors.methods import read_config
from taugrad.compressors.ops.cpu.passes import CPU, CpuOps

F32 = np.float32


def blocks_of(values: Floats, block: int) -> list[Floats]:
    """Views of a parameter's blocks."""
    return [values[low : low + (block or values.size)] for low in range(0, values.size, block or values.size)]


# EF-SignSGD (arXiv:1901.09847).


@in_turn("block", [0, 40, 1000])
def test_sign_is_with_error_feedback(block: int) -> None:
    """p = g + e; the update is (||p||_1 / d) sign(p); e = p - update."""
    worker, errors = Worker(f"sign(block={block})"), [np.zeros(n, F32) for n in SIZES]
    for seed in range(5):
        gradients = random_gradients(seed)
        step = worker.step(gradients)
        for i, gradient in enumerate(gradients):
            update, p = np.empty_like(gradient), gradient + errors[i]
            for of_block, into in zip(blocks_of(p, block), blocks_of(update, block), strict=True):
                into[:] = oracles.sign(of_block).values
                assert np.abs(into) == pytest.approx(np.abs(of_block).mean(), rel=1e-6)
            errors[i] = p - update
            assert np.array_equal(step.decoded[i], update)
            assert np.array_equal(worker.residual(i), errors[i])


def test_the_owner_of_a_shard_sends_what_the_majority_has_voted_for() -> None:
    """SignSGD with majority vote (arXiv:1810.05291): sign of the sum of signs, the same from all blocks."""
    line = "sign(scale='one', decay=0)"
    workers, owner = [Worker(line) for _ in range(5)], Worker(line)
    gradients = [random_gradients(seed) for seed in range(5)]
    steps = [worker.step(one) for worker, one in zip(workers, gradients, strict=True)]
    sums = [sum(step.decoded[i] for step in steps) for i in range(len(SIZES))]
    for i, voted in enumerate(owner.step(sums).decoded):
        assert np.array_equal(voted, np.sign(sum(np.sign(one[i]) for one in gradients)))
    (zeros,) = Worker(line, (8,)).step([np.zeros(8, F32)]).decoded
    assert not zeros.any()


# Methods that round at random.


def uniform(seed: int, iteration: int, stream: int, name: str, position: int) -> float:
    """The random number of an element."""
    return (oracles.hashed(position, *oracles.key_of(seed, iteration, stream, name)) >> 8) / 2**24


def levels(scale: float, s: int, x: F32, u: float) -> F32:
    """QSGD and TernGrad: one of the multiples of scale / s next to x, at random."""
    width = oracles.rounded_up(scale / s, s.bit_length() + 1)
    return F32(min(max(math.floor(x / width + F32(u)), -s), s)) * width


def qsgd(values: Floats, u: list[float], s: int, norm: str) -> list[F32]:
    wide = values.astype(np.float64)
    scale = float(np.abs(wide).max()) if norm == "max" else math.sqrt(sum(map(float, wide * wide)))
    return [levels(scale, s, x, r) for x, r in zip(values, u, strict=True)]


def terngrad(values: Floats, u: list[float], sigmas: float) -> list[F32]:
    wide = values.astype(np.float64)
    scale = float(np.abs(wide).max())
    if sigmas:
        scale = min(scale, sigmas * math.sqrt(sum(map(float, wide * wide)) / wide.size))
    return [levels(scale, 1, x, r) for x, r in zip(values, u, strict=True)]


def natural(values: Floats, u: list[float]) -> list[F32]:
    """2^floor(log2 |x|) or twice that; with 18 powers from the block's largest one downwards."""
    least = 2.0 ** (math.frexp(float(np.abs(values).max()))[1] - 17)
    result = []
    for x, r in zip(values.tolist(), u, strict=True):
        below = 2.0 ** (math.frexp(abs(x))[1] - 1) if abs(x) >= least else 0.0
        above = 2 * below or least
        up = r < (abs(x) - below) / (above - below)
        result.append(F32(math.copysign(above if up else below, x)))
    return result


@in_turn(
    ("line", "rounded"),
    [
        ("qsgd(4, block=40, decay=1)", partial(qsgd, s=7, norm="max")),
        ("qsgd(3, block=40, norm='l2')", partial(qsgd, s=3, norm="l2")),
        ("qsgd(8, block=40, seed=7)", partial(qsgd, s=127, norm="max")),
        ("terngrad(block=40)", partial(terngrad, sigmas=2.5)),
        ("terngrad(0, block=40, decay=1)", partial(terngrad, sigmas=0)),
        ("natural(block=40, decay=1)", natural),
    ],
    ids=["qsgd", "qsgd, norm", "qsgd, 8 bits", "terngrad", "terngrad, not clipped", "natural"],
)
def test_random_rounding_is_the_papers(line: str, rounded: Callable[..., list[F32]]) -> None:
    worker, kept = Worker(line), [np.zeros(n, F32) for n in SIZES]
    for iteration in range(4):
        gradients = random_gradients(iteration)
        gradients[0][7], gradients[0][9] = 0, 1e-9
        step = worker.step(gradients)
        for i, gradient in enumerate(gradients):
            total, update = gradient + kept[i], np.empty_like(gradient)
            u = [uniform(worker.config.seed, iteration, 0, f"p{i}", j) for j in range(total.size)]
            for low, of_block in zip(range(0, total.size, 40), blocks_of(total, 40), strict=True):
                update[low : low + 40] = rounded(of_block, u[low : low + 40])
            assert np.array_equal(step.decoded[i], update)
            kept[i] = (total - update) * F32(worker.config.decay)
            assert np.array_equal(worker.residual(i), kept[i])


@in_turn("line", ["qsgd(3)", "qsgd(2, norm='l2')", "terngrad(0)", "natural"])
def test_the_mean_of_what_is_sent_is_what_was_given(line: str) -> None:
    worker, gradients, steps = Worker(line), random_gradients(1), 400
    sums = [np.zeros((2, n)) for n in SIZES]
    for _ in range(steps):
        for i, sent in enumerate(worker.step(gradients).decoded):
            sums[i] += sent, sent.astype(np.float64) ** 2
    errors = [(one[0] / steps - gradient) for one, gradient in zip(sums, gradients, strict=True)]
    chance = [np.sqrt(np.maximum(one[1] / steps - (one[0] / steps) ** 2, 0) / steps) for one in sums]
    for error, deviation, gradient in zip(errors, chance, gradients, strict=True):
        assert (np.abs(error) <= 5 * deviation + 0.02 * np.abs(gradient).max()).all()
        assert abs(error.sum()) <= 5 * np.sqrt((deviation**2).sum()) + 1e-4


def test_every_worker_and_every_seed_rounds_by_itself() -> None:
    def sent(seed: int, rank: int, name: str = "a", iteration: int = 3) -> bytes:
        method: Any = read_config(f"qsgd(seed={seed})")
        one = Compressor(method, compressor.Worker(CPU, rank), Shard.whole({name: 128}))
        return one.compress([torch.from_numpy(random_gradients(1)[3])], iteration).payload.tobytes()

    assert sent(1, 0) == sent(1, 0)
    assert len({sent(1, 0), sent(2, 0), sent(1, 1), sent(1, 0, "b"), sent(1, 0, "a", 4)}) == 5


def test_a_slice_of_a_parameter_is_rounded_as_in_the_whole() -> None:
    method: Any = read_config("natural(8)")
    gradient = torch.from_numpy(random_gradients(1)[3])
    whole, part = (
        Compressor(
            method, compressor.Worker(CPU), Shard(start, stop, (ParameterSlice("a", 0, start, stop, 128),))
        )
        for start, stop in ((0, 128), (64, 104))
    )
    totals = []
    for one, given in ((whole, gradient), (part, gradient[64:104])):
        total = torch.empty(given.numel())
        one.total([one.read(one.compress([given], 2).payload)], 1, total)
        totals.append(total)
    assert torch.equal(totals[0][64:104], totals[1])


# Random-k: its transcription is `oracles.drawn`, to which test_methods.py compares it.


def test_all_workers_draw_the_same_elements_and_new_ones_in_each_iteration() -> None:
    def words(rank: int, iteration: int, seed: int) -> list[int]:
        method: Any = read_config(f"random_k(0.1, seed={seed})")
        one = Compressor(method, compressor.Worker(CPU, rank), Shard.whole({"a": 300, "b": 300}))
        given = [torch.from_numpy(random_gradients(rank, (300,))[0]) for _ in range(2)]
        (update,) = one.read(one.compress(given, iteration).payload)
        found: list[int] = update.words.tolist()
        return found

    assert words(0, 3, 0) == words(1, 3, 0)
    assert len({tuple(words(0, *one)) for one in ((3, 0), (4, 0), (3, 1))}) == 3
    found = np.array(words(0, 3, 0)) >> 1
    assert (found[:30] + 300 != found[30:]).any()
    strata, often = np.zeros(30, np.int64), np.zeros(300, np.int64)
    for iteration in range(300):
        positions = np.array(words(0, iteration, 0)[:30]) >> 1
        strata += np.bincount(positions // 10, minlength=30)
        often += np.bincount(positions, minlength=300)
    assert (strata == 300).all()
    assert often.min() > 8
    assert often.max() < 60


def test_a_sum_of_updates_is_sent_whole() -> None:
    """What partial sums rely on: the same choice again takes all that was chosen before."""
    method: Any = read_config("random_k(0.05)")
    workers = [Compressor(method, compressor.Worker(CPU, rank), Shard.whole({"a": 400})) for rank in range(4)]
    total = torch.empty(400)
    for iteration in range(3):
        sent = [one.read(one.compress([torch.randn(400)], iteration).payload) for one in workers[:3]]
        workers[3].total(sent, 1, total)
        again = torch.empty(400)
        workers[3].total([workers[3].read(workers[3].compress([total.clone()], iteration).payload)], 1, again)
        assert torch.equal(again, total)
        assert not workers[3].feedback.residuals["a"].any()


@in_turn("line", ["sign", "sign(1000)", "qsgd", "qsgd(norm='l2')", "terngrad", "natural", "random_k(0.1)"])
def test_threads_change_no_bit(line: str) -> None:
    gradients = random_gradients(0, (150_000, 7))
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            worker = Worker(line, (150_000, 7), ops=CpuOps(threads))
            payloads = [worker.step(gradients).payloads for _ in range(2)]
            results.append((payloads, worker.state[0]))
    finally:
        torch.set_num_threads(before)
    assert results[0] == results[1]


def test_golden_message() -> None:
    """sign writes messages of linear: u32 block, low, width, symbols; the mean of magnitudes is 1.25."""
    golden = """74 67 02 09 04 00 01 00 04 00 00 00 04 00 00 00 0d 00 00 00 00 00 00 00
        00 00 00 00 00 00 20 c0 00 00 20 40 05"""
    payload = Worker("sign", (4,)).step([np.array([1.5, -0.25, 0.0, -3.25], F32)]).payloads[0]
    assert payload[:24] + payload[28:] == bytes.fromhex(golden)  # a CRC-32 between them
