"""All of a bucket in one call against one parameter, message or update after the other."""

from collections.abc import Callable

import numpy as np
import torch
from cases import in_turn

from taugrad.compressors.bucket.adding import add_update, sum_all
from taugrad.compressors.bucket.compressor import Compressor
from taugrad.compressors.bucket.layout import Part
from taugrad.compressors.method import read_config
from taugrad.compressors.method.base import Form
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.segments import Segments
from taugrad.compressors.rules.base import Context
from taugrad.compressors.wire.message import is_refusal
from taugrad.compressors.wire.update import Update


def words_below(n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    positions = np.sort(rng.choice(n, min(k, n), replace=False)).astype(np.uint32)
    return positions << np.uint32(1) | rng.integers(0, 2, positions.size).astype(np.uint32)


def sparse(form: Form, segments: Segments, density: float, rng: np.random.Generator) -> Update:
    words = words_below(segments.n, int(density * segments.n), rng)
    values = {
        "f32": rng.standard_normal(words.size).astype(np.float32),
        "qgt": rng.integers(1, 256, words.size).astype(np.uint8),
    }.get(form, np.empty(0, np.uint8))
    taus = None if form == "f32" else rng.uniform(1e-3, 1, len(segments)).astype(np.float32)
    return Update(form, segments, words, segments.counts_of(words), values, taus)


@in_turn("form", ["strom", "qgt", "f32", "bgt"])
@in_turn("divisor", [1, 2, 3, 7, 8])
@in_turn("density", [0.0005, 0.02, 0.4])
def test_a_sum_in_one_pass_is_zeros_added_to_and_divided(form: Form, divisor: int, density: float) -> None:
    """Also where parameters that are sent otherwise lie between."""
    rng, n = np.random.default_rng(divisor), 50_000
    whole = Segments.side_by_side([1, 20_000, 9000, n - 29_001])
    some = Segments((1, 3), whole.starts[[1, 3]], whole.sizes[[1, 3]])
    updates = [sparse(form, segments, density, rng) for segments in (whole, some, whole, some, whole)]
    expected = np.zeros(n, np.float32)
    for update in updates:
        assert update.words is not None
        positions, owners = update.words >> 1, np.repeat(np.arange(len(update.segments)), update.counts)
        starts, firsts = update.segments.starts, np.cumsum(update.segments.sizes) - update.segments.sizes
        np.add.at(expected, positions - firsts[owners] + starts[owners], update.amounts(CPU))
    expected /= np.float32(divisor)
    total = torch.full((n,), torch.nan)
    sum_all([[update] for update in updates], divisor, total, CPU)
    assert total.numpy().tobytes() == expected.tobytes()
    one_by_one = torch.zeros(n)
    for update in updates:
        add_update(update, one_by_one, CPU)
    if divisor == 1:
        assert one_by_one.numpy().tobytes() == expected.tobytes()


@in_turn("form", ["linear", "quantile", "fp8", "fp16", "bf16", "f32"])
def test_whole_parameters_are_summed_as_they_are_added(
    form: Form, random_update: Callable[..., Update]
) -> None:
    """Some of them held back by one worker or by all; the bucket larger than what is summed together."""
    segments, rng = Segments.side_by_side([300_000, 7, 4000, 90_000]), np.random.default_rng(1)
    updates = [random_update("every", form, segments.n, 0, rng, segments) for _ in range(3)]
    for several in (updates, [updates[0]] * 3):
        due = np.zeros(segments.n, np.float32)
        for update in several:
            for where, own in update.places():
                due[where] += update.amounts(CPU)[own]
        total = torch.full((segments.n,), torch.nan)
        sum_all([[update] for update in several], 3, total, CPU)
        assert total.numpy().tobytes() == (due / np.float32(3)).tobytes()


def test_a_sum_of_nothing_is_zeros() -> None:
    total = torch.full((10,), torch.nan)
    nothing = np.empty(0, np.uint32), np.zeros(1, np.int64)
    sum_all([[Update("f32", Segments.side_by_side([10]), *nothing)]], 2, total, CPU)
    assert total.numpy().tobytes() == bytes(40)
    sum_all([], 2, total.fill_(1), CPU)
    assert total.numpy().tobytes() == bytes(40)


@in_turn("dtype", [torch.float32, torch.bfloat16])
def test_velocities_of_a_bucket_are_those_of_each_parameter(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    sizes, momentum = [3, 1000, 0, 77], 0.9
    compressor = Compressor(read_config(f"wgt(0.5, momentum={momentum})"))  # type: ignore[arg-type]
    velocities = [torch.randn(size, generator=generator) for size in sizes]
    before = [each.clone() for each in velocities]
    context = Context()
    for step in range(3):
        gradients = [torch.randn(size, generator=generator).to(dtype) for size in sizes]
        gradients[1][step] = float("inf")
        residuals = [torch.zeros(size) for size in sizes]
        zipped = zip("abcd", gradients, residuals, velocities, strict=True)
        parts = [Part(*each) for each in zipped]
        outgoing = compressor.compress(parts, compressor.layout("abcd", sizes), context)
        assert is_refusal(outgoing.payload)
        for i, (velocity, gradient, residual) in enumerate(zip(before, gradients, residuals, strict=True)):
            moved = velocity * momentum + gradient.float()
            finite = torch.isfinite(moved)
            sent = finite & (moved.abs() >= 0.5)
            # The gradient is refused as a whole: what was taken out is put back.
            assert torch.equal(residual, torch.where(finite, moved, 0))
            assert torch.equal(velocities[i], torch.where(sent, 0, torch.where(finite, moved, velocity)))
            before[i] = velocities[i].clone()
