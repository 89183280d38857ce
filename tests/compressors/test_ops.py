"""Every operation of `Ops` on every device that there is, against its definition, bit for bit."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import emulator
import numpy as np
import oracles
import pytest
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import missing
from numpy.typing import NDArray
from oracles import F32, MAX, Floats, Quantized, Sent

from taugrad.compressors.ops.cpu import blockwise, topk
from taugrad.compressors.ops.cpu.by_range import count_symbols
from taugrad.compressors.ops.cpu.passes import CpuOps
from taugrad.compressors.ops.interface import (
    Batch,
    Kept,
    Ops,
    Quantizing,
    Readback,
    Selected,
    Target,
    ThresholdRule,
)
from taugrad.compressors.ops.parts import Part
from taugrad.compressors.ops.uniform import positions_of
from taugrad.compressors.thresholds.samples import reached_by
from taugrad.compressors.wire.forms import table_layout

RULES: tuple[ThresholdRule, ...] = ("wgt", "bgt", "qgt", "strom")
TAU = 0.3
CANARY = 7e30
SIZES = (31, 0, 1, 4095, 33, 9001)


DEVICES = ("cpu", "emulator", pytest.param("gpu", marks=pytest.mark.gpu))
sparse = pytest.mark.parametrize("ops", ["portable", *DEVICES], indirect=True)
"""Of passes that have a form without AVX-512."""


@pytest.fixture(scope="module", params=DEVICES)
def ops(request: pytest.FixtureRequest) -> Ops:
    """The devices; NVRTC's part is in tests/cuda."""
    if request.param == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device here")
        from taugrad.compressors.ops.cuda.cupy_runtime import CuPyRuntime

        return CuPyRuntime(torch.device("cuda"))
    if request.param == "emulator":
        if emulator.COMPILER is None:
            missing("needs g++ to emulate CUDA")
        return emulator.EmulatedGpu()
    return CpuOps() if request.param == "cpu" else CpuOps(vectorized=False)


def fetched(ops: Ops, array: Any) -> NDArray[Any]:
    return ops.fetch_all([array])[0].copy()


class Fenced:
    """Parameters on a device, each at an offset of an allocation whose other numbers are canaries."""

    def __init__(self, ops: Ops, arrays: Sequence[Floats], offset: int = 0) -> None:
        self.whole = [torch.full((array.size + 8,), CANARY, device=ops.device) for array in arrays]
        self.tensors = [
            whole[offset : offset + array.size] for whole, array in zip(self.whole, arrays, strict=True)
        ]
        for tensor, array in zip(self.tensors, arrays, strict=True):
            tensor.copy_(torch.from_numpy(array))

    def read(self) -> list[Floats]:
        for whole, tensor in zip(self.whole, self.tensors, strict=True):
            assert int((whole == CANARY).sum()) >= whole.numel() - tensor.numel()
        return [tensor.cpu().numpy().copy() for tensor in self.tensors]


def wild(rng: np.random.Generator, n: int, scale: float) -> Floats:
    """Normal numbers, one in ten of them special: multiples of tau and neighbours, denormals, the largest."""
    tau = F32(TAU)
    around = [np.nextafter(tau, F32(0)), tau, np.nextafter(tau, F32(9))]
    magnitudes = [0.0, 1e-45, 1e-39, 2 * TAU, 255 * tau, 256 * tau, 1e30, MAX, *around]
    specials = np.array([sign * F32(magnitude) for magnitude in magnitudes for sign in (1, -1)], F32)
    values = (rng.standard_normal(n) * scale).astype(F32)
    return np.where(rng.random(n) < 0.1, rng.choice(specials, n), values)


def tamed(values: Floats) -> Floats:
    """Without what overflows in a sum."""
    return np.clip(values, F32(-1e30), F32(1e30))


# Sparse passes

Pass = Callable[[Batch, Target], Callable[[], Selected]]


def check_sparse(
    ops: Ops,
    rule: ThresholdRule,
    residuals: Sequence[Floats],
    gradients: Sequence[Floats],
    run: Pass,
    expected: Sequence[Sent],
    offsets: tuple[int, int] = (0, 0),
    dtype: torch.dtype = torch.float32,
) -> None:
    kept, added = Fenced(ops, residuals, offsets[0]), Fenced(ops, gradients, offsets[1])
    elements = sum(residual.size for residual in residuals)
    bases = 5 + np.cumsum([0, *[residual.size for residual in residuals[:-1]]])
    readback = Readback(ops)
    target = ops.target(elements, rule, readback)
    batch = Batch.of(kept.tensors, [tensor.to(dtype) for tensor in added.tensors], bases=bases)
    begun = run(batch, target)
    readback.fetch()
    actual, rest = begun(), kept.read()
    ends = np.cumsum([update.positions.size for update in expected])
    assert actual.ends.tolist() == ends.tolist()
    assert actual.nonfinite.tolist() == [update.nonfinite for update in expected]
    assert actual.taus.tolist() == [update.tau for update in expected]
    words = [
        ((base + update.positions) << 1 | update.minus).astype(np.uint32)
        for base, update in zip(bases, expected, strict=True)
    ]
    assert fetched(ops, target.words)[: ends[-1]].tolist() == np.concatenate(words).tolist()
    values = np.concatenate([update.values for update in expected])
    if values.size:
        assert fetched(ops, target.values)[: ends[-1]].tobytes() == values.tobytes()
    for mine, due, squares in zip(rest, expected, actual.residual_squares, strict=True):
        assert mine.tobytes() == due.residual.tobytes()
        if not due.nonfinite and np.abs(due.residual).max(initial=0) < 1e15:  # it is a metric, in float32
            assert squares == pytest.approx(
                np.square(due.residual, dtype=np.float64).sum(), rel=1e-4, abs=1e-30
            )
    assert [tensor.tobytes() for tensor in added.read()] == [gradient.tobytes() for gradient in gradients]


def check_threshold(
    ops: Ops, rule: ThresholdRule, residuals: list[Floats], gradients: list[Floats], **more: Any
) -> None:
    taus = [TAU, 0.1, 2.0, TAU, TAU, 1e-36][: len(residuals)]
    expected = [
        oracles.threshold(rule, *arguments) for arguments in zip(residuals, gradients, taus, strict=True)
    ]
    run: Pass = lambda batch, target: ops.take_by_threshold(rule, batch, target, taus)  # noqa: E731
    check_sparse(ops, rule, residuals, gradients, run, expected, **more)


@sparse
@in_turn("rule", RULES)
@in_turn("scale", [0.01, 0.2, 3.0])
def test_threshold(ops: Ops, rule: ThresholdRule, scale: float) -> None:
    rng = np.random.default_rng(1)
    check_threshold(
        ops, rule, [wild(rng, n, scale) for n in SIZES], [tamed(wild(rng, n, scale)) for n in SIZES]
    )


@sparse
@in_turn("offsets", [(i, j) for i in range(4) for j in range(4)])
def test_threshold_at_any_address(ops: Ops, offsets: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    arrays = [[wild(rng, n, 0.2) for n in (1, 3, 5, 4093)] for _ in range(2)]
    check_threshold(ops, "qgt", *arrays, offsets=offsets)


@sparse
@in_turn("rule", RULES)
@in_turn("broken", [np.nan, -np.nan, np.inf, -np.inf])
def test_threshold_where_a_sum_is_not_finite(ops: Ops, rule: ThresholdRule, broken: float) -> None:
    rng = np.random.default_rng(3)
    gradients = [tamed(wild(rng, 5000, 0.2)) for _ in range(4)]
    for at, gradient in zip((0, 31, 4096, 4999), gradients, strict=True):
        gradient[at] = broken
    full = [np.full(9, MAX, F32)]
    check_threshold(ops, rule, [np.full(5000, 0.1, F32)] * 4 + full, gradients + full)


def widened(dtype: torch.dtype) -> Floats:
    """All numbers of a 16-bit type."""
    bits = torch.from_numpy(np.random.default_rng(4).permutation(np.arange(65_536)).astype(np.int32))
    return bits.to(torch.int16).view(dtype).float().numpy()


@sparse
@in_turn("dtype", [torch.float16, torch.bfloat16])
def test_short_gradients_are_widened(ops: Ops, dtype: torch.dtype) -> None:
    gradient = np.nan_to_num(widened(dtype), nan=1, posinf=2, neginf=-2)[:9000]
    check_threshold(ops, "wgt", [np.zeros(9000, F32)], [gradient], dtype=dtype)


KINDS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, n: rng.standard_normal(n).astype(F32),
    "ties": lambda rng, n: rng.integers(-2, 3, n).astype(F32),
    "equal": lambda rng, n: np.full(n, -0.5, F32),
    "zeros": lambda rng, n: np.where(rng.random(n) < 0.5, F32(0), F32(-0.0)),
    "few": lambda rng, n: np.where(np.arange(n) % 700 == 5, F32(3), F32(0)),
    "denormal": lambda rng, n: (rng.standard_normal(n) * 1e-38).astype(F32),
    "huge": lambda rng, n: np.where(rng.random(n) < 0.5, MAX, rng.standard_normal(n)).astype(F32),
    "not finite": lambda rng, n: np.where(np.arange(n) == n // 2, F32(np.nan), F32(1)),
}


def check_largest(ops: Ops, residuals: list[Floats], gradients: list[Floats], counts: list[int]) -> None:
    expected = [oracles.largest(*arguments) for arguments in zip(residuals, gradients, counts, strict=True)]
    run: Pass = lambda batch, target: ops.take_largest(batch, target, counts)  # noqa: E731
    check_sparse(ops, "wgt", residuals, gradients, run, expected)


@sparse
@in_turn("kind", KINDS)
@in_turn("share", [0.0, 0.001, 0.3, 1.0, 1.2])
def test_largest(ops: Ops, kind: str, share: float) -> None:
    rng = np.random.default_rng(5)
    gradients = [KINDS[kind](rng, n) if n else np.empty(0, F32) for n in (*SIZES, 20_000)]
    residuals = [np.zeros(gradient.size, F32) for gradient in gradients]
    check_largest(ops, residuals, gradients, [int(share * gradient.size) for gradient in gradients])


@sparse
@in_turn("kind", KINDS)
@in_turn(("chunk", "keep"), [(2, 1), (64, 0), (64, 3), (512, 512), (4096, 40), (8192, 5)])
def test_largest_of_chunks(ops: Ops, kind: str, chunk: int, keep: int) -> None:
    rng = np.random.default_rng(6)
    sizes = [min(n, 300 * chunk) for n in SIZES]  # a chunk takes the emulator as long as 4096 elements
    gradients = [KINDS[kind](rng, n) if n else np.empty(0, F32) for n in sizes]
    residuals = [np.zeros(n, F32) for n in sizes]
    expected = [
        oracles.largest_of_chunks(*arguments, chunk, keep)
        for arguments in zip(residuals, gradients, strict=True)
    ]
    run: Pass = lambda batch, target: ops.take_largest_of_chunks(batch, target, chunk, keep)  # noqa: E731
    check_sparse(ops, "wgt", residuals, gradients, run, expected)


@in_turn("dtype", [torch.float32, torch.bfloat16])
def test_momentum(ops: Ops, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(7)
    velocities = [rng.standard_normal(n).astype(F32) for n in SIZES]
    gradients = [torch.from_numpy(rng.standard_normal(n).astype(F32)).to(dtype) for n in SIZES]
    gradients[3][7] = torch.inf
    there = Fenced(ops, velocities)
    batch = Batch.of([None] * len(gradients), [gradient.to(ops.device) for gradient in gradients])
    actual = [mine for _, mine in ops.apply_momentum(batch, there.tensors, 0.9).pairs()]
    for mine, velocity, gradient, after in zip(actual, velocities, gradients, there.read(), strict=True):
        due = velocity * F32(0.9) + gradient.float().numpy()
        assert mine.cpu().numpy().tobytes() == due.tobytes()
        assert after.tobytes() == np.where(np.isfinite(due), due, velocity).tobytes()


# What is sent


def words_below(n: int, k: int, rng: np.random.Generator) -> NDArray[np.uint32]:
    positions = np.sort(rng.choice(n, k, replace=False)).astype(np.uint32)
    return positions << np.uint32(1) | rng.integers(0, 2, k).astype(np.uint32)


@in_turn("kind", ["taus", "levels", "values"])
def test_words_are_added_and_cleared(ops: Ops, kind: str) -> None:
    rng, sizes = np.random.default_rng(8), np.array([1000, 1, 4000])
    firsts = np.cumsum(sizes) - sizes
    shifts = np.array([0, 300, 300])
    words = words_below(5001, 700, rng)
    ends = np.searchsorted(words >> 1, firsts + sizes)
    total = rng.standard_normal(5400).astype(F32)
    taus = rng.uniform(0.1, 1, 3).astype(F32)
    levels, values = rng.integers(1, 256, 700).astype(np.uint8), rng.standard_normal(700).astype(F32)
    owners = np.searchsorted(ends, np.arange(700), side="right")
    magnitudes = taus[owners] * (levels.astype(F32) if kind == "levels" else F32(1))
    amounts = values if kind == "values" else np.where(words & 1, -magnitudes, magnitudes)
    beside = {"taus": np.empty(0, np.uint8), "levels": levels, "values": values}[kind]
    dense = Fenced(ops, [total])
    there, placed = ops.place_all([words, beside])
    rows = np.zeros((3, 4), np.int64)
    rows[:, 0], rows[:, 2], rows[:, 3] = dense.tensors[0].data_ptr() + 4 * (firsts + shifts), sizes, firsts
    ops.add_words(there, ends, rows, None if kind == "values" else taus, placed)
    due = total.copy()
    due[(words >> 1) + shifts[owners]] += amounts
    assert dense.read()[0].tobytes() == due.tobytes()
    ops.add_words(there, ends, rows, None, None)
    due[(words >> 1) + shifts[owners]] = 0
    assert dense.read()[0].tobytes() == due.tobytes()


# Looking


@in_turn("n", [1, 5000, 70_001])
def test_looking(ops: Ops, n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n).astype(F32)
    there, kept = torch.from_numpy(values).to(ops.device), torch.ones(n, device=ops.device)
    readback = Readback(ops)
    squares = ops.squares([there, None], readback)
    total = ops.exact_squares(Batch.of([None], [there]), readback)
    broken = there.clone()
    broken[-1] = torch.nan
    halves = there.to(torch.float16)
    gathered, finite = ops.gather([there, broken, halves], readback)
    readback.fetch()
    assert finite().tolist() == [False, True, False]
    assert fetched(ops, gathered)[: 2 * n - 1].tobytes() == np.append(values, values[:-1]).tobytes()
    assert fetched(ops, gathered)[2 * n :].tobytes() == halves.float().cpu().numpy().tobytes()
    assert squares().tolist() == [pytest.approx(np.square(values, dtype=np.float64).sum(), rel=1e-9), 0]
    assert total().tolist() == [oracles.exact_sum_of_squares(values)]
    zeros = torch.zeros(n, device=ops.device)
    only_last = zeros.clone()
    only_last[-1] = torch.nan
    looked = [there, zeros, -zeros, only_last, broken.to(torch.bfloat16)]
    assert ops.nonzero(looked).tolist() == [True, False, False, True, True]
    places = positions_of(np.array([n]), np.array([min(n, 64)]))
    short, most = there.to(torch.bfloat16), min(n, 64)
    samples = ops.samples(Batch.of([None, kept], [there, short]), [most, most], readback)
    readback.fetch()
    one, two = samples()
    assert one.tobytes() == values[places].tobytes()
    assert two.tobytes() == (1 + short.float().cpu().numpy()[places]).tobytes()
    for rank in {1, -(-most // 3), most}:
        reached, odd = ops.ranked_samples(
            Batch.of([None, kept, None], [there, short, only_last]), [most] * 3, [rank] * 3
        )
        assert odd.tolist() == [False, False, n <= 64]
        assert reached[:2].tolist() == [np.sort(np.abs(array))[-rank] for array in (one, two)]


# Quantizing passes

ORACLES: dict[str, Callable[[Floats, int], Quantized]] = {
    "linear": oracles.linear,
    "quantile": oracles.quantile,
    "fp8": oracles.fp8,
    "fp16": lambda a, _: oracles.half(a, "fp16"),
    "bf16": lambda a, _: oracles.half(a, "bf16"),
}


def quantize(
    ops: Ops,
    form: str,
    bits: int,
    block: int,
    residuals: Sequence[Floats] | None,
    gradients: Sequence[Floats],
    dtype: torch.dtype = torch.float32,
) -> tuple[Kept, NDArray[Any], list[NDArray[Any]], list[Floats] | None, Any]:
    """Runs a pass; what it came to, symbols, tables and residuals on the host, and what is on the device."""
    kept = None if residuals is None else Fenced(ops, residuals)
    added = [torch.from_numpy(gradient).to(ops.device).to(dtype) for gradient in gradients]
    symbols = ops.empty(sum(gradient.size for gradient in gradients), np.uint8 if bits <= 8 else np.uint16)
    batch = Batch.of([None] * len(added) if kept is None else kept.tensors, added)
    readback, layout = Readback(ops), table_layout(form, bits)
    work = Quantizing(batch, readback, symbols, bits, block)
    tables = tuple(ops.empty(work.offsets.all_blocks * width, dtype) for dtype, width in layout)
    pending = ops.quantize(form, work._replace(tables=tables))
    readback.fetch()
    fetched_tables = [fetched(ops, table) for table in tables]
    rest = None if kept is None else kept.read()
    return pending(), fetched(ops, symbols), fetched_tables, rest, (work, tables)


def check_quantized(
    ops: Ops,
    form: str,
    bits: int,
    block: int,
    gradients: list[Floats],
    keeps: bool,
    dtype: Any = torch.float32,
) -> None:
    residuals = [np.full(gradient.size, -0.0, F32) for gradient in gradients] if keeps else None
    passed, symbols, tables, kept, (work, there) = quantize(
        ops, form, bits, block, residuals, gradients, dtype
    )
    due_symbols, due_tables, due_values = [], [], []
    for gradient in gradients:
        for first in range(0, gradient.size, block or max(gradient.size, 1)):
            made = ORACLES[form](gradient[first : first + (block or gradient.size)], bits)
            due_symbols.append(made.symbols)
            due_tables.append(made.tables)
            due_values.append(made.values)
    values = np.concatenate(due_values)
    assert symbols.tolist() == np.concatenate(due_symbols).tolist()
    for table, due in zip(tables, zip(*due_tables, strict=True), strict=True):
        assert table.tobytes() == np.concatenate(due).astype(table.dtype).tobytes()
    a = np.concatenate(gradients)
    if kept is None:
        assert passed.residual_squares.tolist() == [0.0] * len(gradients)
    else:
        with np.errstate(over="ignore"):
            rest = np.clip(a - values, -MAX, MAX)
        assert np.concatenate(kept).tobytes() == rest.tobytes()
        squares = passed.residual_squares.sum()
        assert squares == pytest.approx(np.square(rest, dtype=np.float64).sum(), rel=1e-4, abs=1e-30)
    assert not passed.nonfinite.any()
    starts = np.cumsum([0, *[gradient.size for gradient in gradients[:-1]]])
    for before in (F32(0), F32(1)):
        (out,) = ops.place_all([np.full(a.size, before)])
        ops.add_values(form, [(work.symbols, there)], block, work.offsets.table, out, starts, 0)
        with np.errstate(over="ignore"):
            assert fetched(ops, out).tobytes() == (before + values).tobytes()


def levels(rng: np.random.Generator, n: int) -> Floats:
    """Numbers of one sign or both, ties among them, on a scale of any size."""
    kind = rng.integers(4)
    if kind == 0:
        return np.full(n, rng.choice(np.array([0.0, -0.0, 1e-45, 0.3, -1e30], F32)), F32)
    if kind == 1:
        return rng.integers(-3, 4, n).astype(F32)
    scale = rng.choice([1e-41, 1e-5, 1.0, 1e30])
    return np.where(rng.random(n) < 0.05, F32(-0.0), rng.standard_normal(n) * scale).astype(F32)


FORMS = [("linear", 1), ("linear", 8), ("linear", 11), ("linear", 16), ("quantile", 1), ("quantile", 5)]
FORMS += [("quantile", 8), ("quantile", 10), ("fp8", 8), ("fp16", 16), ("bf16", 16)]


@in_turn(("form", "bits"), FORMS)
@in_turn("block", [0, 3, 500, 4096, 5000])
@in_turn("keeps", [False, True])
def test_quantizing(ops: Ops, form: str, bits: int, block: int, keeps: bool) -> None:
    if block == 3 and form == "quantile" and bits > 8:
        return  # tables larger than what they are about, by thousands
    rng = np.random.default_rng([bits, block])
    gradients = [levels(rng, n) for n in (31, 1, 513, 0, 6001 if block in (0, 5000) else 1000)]
    check_quantized(ops, form, bits, 0 if form.endswith("16") else block, gradients, keeps)


@in_turn("form", ["linear", "quantile", "fp8", "fp16", "bf16"])
def test_quantizing_short_gradients(ops: Ops, form: str) -> None:
    bits = 16 if form.endswith("16") else 4
    gradient = torch.from_numpy(np.random.default_rng(9).standard_normal(2000).astype(F32)).to(torch.bfloat16)
    check_quantized(
        ops, form, bits, 0 if bits == 16 else 300, [gradient.float().numpy()], True, torch.bfloat16
    )


@in_turn("kind", ["fp16", "bf16"])
def test_every_half_is_rounded_to_itself(ops: Ops, kind: str) -> None:
    values = widened(torch.float16 if kind == "fp16" else torch.bfloat16)
    check_quantized(ops, kind, 16, 0, [values[np.isfinite(values)]], True)


@in_turn(("form", "bits"), [("linear", 8), ("quantile", 4), ("fp8", 8), ("fp16", 16), ("bf16", 16)])
@in_turn("block", [0, 100, 5000])
@in_turn("broken", [np.nan, np.inf, -np.inf])
def test_quantizing_where_a_sum_is_not_finite(
    ops: Ops, form: str, bits: int, block: int, broken: float
) -> None:
    """The residual gains what is finite, to rounding; the parameters beside it are quantized."""
    rng = np.random.default_rng(10)
    block = 0 if bits == 16 else block
    for at in (0, 2999, 6000):
        gradients = [rng.standard_normal(6001).astype(F32) for _ in range(2)]
        residuals = [np.full(6001, 0.25, F32) for _ in range(2)]
        gradients[0][at] = broken
        passed, *_, kept, _ = quantize(ops, form, bits, block, residuals, gradients)
        assert passed.nonfinite.tolist() == [True, False]
        assert kept is not None
        due = residuals[0] + gradients[0]
        due[at] = residuals[0][at]
        assert np.allclose(kept[0], due, rtol=1e-5, atol=1e-5)
        assert kept[0][at] == residuals[0][at]
        passed, *_ = quantize(ops, form, bits, block, None, gradients)
        assert passed.nonfinite.tolist() == [True, False]


@in_turn("keeps", [False, True])
def test_bins_by_ranges_of_whole_parameters(ops: Ops, keeps: bool) -> None:
    """What `entropy` asks for: ranges, how values lie between them, and bits of each parameter."""
    rng, bits = np.random.default_rng(11), [1, 8, 12, 5, 3]
    gradients = [rng.standard_normal(n).astype(F32) for n in (31, 1, 5000, 9001, 700)]
    gradients[4][9] = np.nan
    kept = Fenced(ops, [np.zeros_like(gradient) for gradient in gradients])
    residuals = kept.tensors if keeps else [None] * 5
    batch = Batch.of(residuals, [torch.from_numpy(gradient).to(ops.device) for gradient in gradients])
    readback = Readback(ops)
    handle, found_ranges = ops.extremes(batch, readback)
    readback.fetch()
    ranges = found_ranges()
    assert ranges.nonfinite.tolist() == [False] * 4 + [True]
    for gradient, own_low, own_high in list(zip(gradients, ranges.low, ranges.high, strict=True))[:4]:
        assert (own_low, own_high) == (gradient.min(), gradient.max())
        low, step = (table[0] for table in oracles.linear(gradient, 4).tables)
        places = (gradient * F32(0.5) - low * F32(0.5)) * (F32(2) / step if step else F32(0))
        counted = count_symbols(gradient, 4, own_low, own_high)
        assert counted.tolist() == np.bincount(np.minimum(places.astype(int), 15), minlength=16).tolist()
    symbols, (lows, steps) = ops.empty(sum(gradient.size for gradient in gradients), np.uint16), (
        ops.empty(5, F32), ops.empty(5, F32)
    )  # fmt: skip
    work = Quantizing(batch, readback, symbols, max(bits), tables=(lows, steps))
    pending = ops.linear_between(work, bits, handle)
    readback.fetch()
    assert pending().nonfinite.tolist() == [False] * 4 + [True]
    rest, result = kept.read(), fetched(ops, symbols)
    for i, gradient in enumerate(gradients[:4]):
        made = oracles.linear(gradient, bits[i])
        assert result[work.offsets.symbols[i]].tolist() == made.symbols.tolist()
        assert [fetched(ops, column)[i] for column in (lows, steps)] == [column[0] for column in made.tables]
        if keeps:
            assert rest[i].tobytes() == (gradient - made.values).tobytes()


def test_results_are_fetched_together(ops: Ops) -> None:
    readback = Readback(ops)
    slots = [readback.take(n, dtype) for n, dtype in ((3, np.uint8), (5000, np.float64), (1, np.int32))]
    assert [fetched(ops, slot.array).tolist() for slot in slots] == [[0] * 3, [0.0] * 5000, [0]]
    (copied,) = readback.fetch_with(ops.place_all([np.arange(3)]))
    assert copied.tolist() == [0, 1, 2]
    assert [slot.values.size for slot in slots] == [3, 5000, 1]


# The CPU's passes, on threads, on blocks larger than pieces, and on numbers of any kind


def digest(ops: CpuOps, n: int) -> list[bytes]:
    """What every pass writes and keeps, one of the parameters being not finite."""
    rng, results = np.random.default_rng(12), []
    gradients = [
        (rng.standard_normal(size) * 10.0 ** rng.integers(-9, 3, size)).astype(F32)
        for size in (n, 70_000, 5, 140_000)
    ]
    gradients[1][50_000] = np.inf

    def sparse(rule: ThresholdRule, run: Pass) -> None:
        kept = Fenced(ops, [np.full(gradient.size, 0.25, F32) for gradient in gradients])
        target = ops.target(n + 210_005, rule, Readback(ops))
        batch = Batch.of(kept.tensors, [torch.from_numpy(gradient) for gradient in gradients])
        selected = run(batch, target)()
        results.extend(tensor.tobytes() for tensor in kept.read())
        has_values = rule in ("wgt", "qgt")
        results.extend(column[: selected.ends[-1]].tobytes() for column in target[: 1 + has_values])
        results.extend(tensor.tobytes() for tensor in (selected.ends, selected.nonfinite, selected.taus))

    taus = [0.3, 0.1, 0.5, 0.2]
    for rule in RULES:
        sparse(rule, lambda batch, target, rule=rule: ops.take_by_threshold(rule, batch, target, taus))
    counts = [n // 100, 9, 2, 30_000]
    sparse("wgt", lambda batch, target: ops.take_largest(batch, target, counts))
    for form, bits in FORMS[1:3] + FORMS[6:7] + FORMS[8:]:
        for block in [2048, 0, blockwise.PIECE + 5] if bits < 16 or form == "linear" else [0]:
            residuals = [np.full(gradient.size, 0.25, F32) for gradient in gradients]
            passed, symbols, _, kept, _ = quantize(ops, form, bits, block, residuals, gradients)
            assert passed.nonfinite.tolist() == [False, True, False, False]
            results.extend(tensor.tobytes() for tensor in kept or [])
            good = np.r_[0:n, n + 70_000 : symbols.size]  # of the other one they mean nothing
            results.append(symbols[good].tobytes())
    return results


def test_threads_change_nothing() -> None:
    n = 2 * blockwise.PIECE + 4321
    assert digest(CpuOps(3), n) == digest(CpuOps(1), n)


@pytest.mark.long
def test_a_cpu_without_wide_vectors_gives_the_same_bits(tmp_path: Path) -> None:
    """The same passes, compiled for the oldest CPU that LLVM knows of this architecture."""
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    folders = [str(Path(__file__).parent), str(Path(oracles.__file__).parent)]
    script = f"""
import sys
sys.path[:0] = {folders!r}
import hashlib, test_ops
print(hashlib.sha256(b"".join(test_ops.digest(test_ops.CpuOps(2, False), 30_011))).hexdigest())
"""
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    expected = hashlib.sha256(b"".join(digest(CpuOps(2), 30_011))).hexdigest()
    assert ran.stdout.strip() == expected


@in_turn("block", [3, 2048, 1_500_000, 0])
def test_blocks_and_parameters_larger_than_a_piece(block: int) -> None:
    gradient = np.random.default_rng(13).standard_normal(2 * blockwise.PIECE + 4321).astype(F32)
    if block == 3:
        gradient = gradient[: blockwise.PIECE + 7]
    if block != 3:
        check_quantized(CpuOps(2), "linear", 8, block, [gradient], True)
    _, symbols, (exponents,), kept, _ = quantize(
        CpuOps(2), "fp8", 8, block, [np.zeros_like(gradient)], [gradient]
    )
    starts = np.arange(0, gradient.size, block or gradient.size)
    most = np.maximum.reduceat(np.abs(gradient), starts).astype(np.float64)
    assert ((most > 224 * 2.0**exponents) & (most <= 448 * 2.0**exponents)).all()
    scale = np.repeat(2.0**exponents, np.diff(np.append(starts, gradient.size)))
    short = torch.from_numpy((gradient / scale).astype(F32)).to(torch.float8_e4m3fn)
    assert symbols.tobytes() == short.view(torch.uint8).numpy().tobytes()
    assert kept is not None
    assert (kept[0] == gradient - short.float().numpy() * scale).all()


ANY = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1e-45, -1e-40, float(MAX), TAU, 1.0, -1.0])
TAME = st.floats(-float(MAX) / 2, float(MAX) / 2, width=32) | st.sampled_from([0.0, -0.0, 1e-45, 1.0, -1.0])


@settings(max_examples=100)
@given(st.data(), st.lists(st.tuples(ANY, ANY), max_size=60), st.booleans())
def test_sparse_passes_over_any_floats(
    data: st.DataObject, pairs: list[tuple[float, float]], fast: bool
) -> None:
    cpu = CpuOps(vectorized=fast)
    residual, gradient = (
        (np.array(column, F32) for column in zip(*pairs, strict=True)) if pairs else ([np.empty(0, F32)] * 2)
    )
    residual = np.where(np.isfinite(residual), residual, F32(0.5))
    check_threshold(cpu, data.draw(st.sampled_from(RULES)), [residual], [gradient])
    check_largest(cpu, [residual], [gradient], [data.draw(st.integers(0, 70))])


@settings(max_examples=100)
@given(st.data(), st.lists(TAME, min_size=1, max_size=60), st.sampled_from(FORMS), st.integers(0, 70))
def test_quantizing_any_floats(
    data: st.DataObject, numbers: list[float], form: tuple[str, int], block: int
) -> None:
    name, bits = form
    block = 0 if name.endswith("16") else block
    check_quantized(CpuOps(), name, bits, block, [np.array(numbers, F32)], data.draw(st.booleans()))


def test_a_guess_that_is_too_high_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where other parameters' words stand behind."""
    monkeypatch.setattr(topk, "_low_guess", lambda row, k: F32(2.5))
    rng = np.random.default_rng(14)
    gradients = [rng.standard_normal(n).astype(F32) for n in (20_000, 5, 30_000, 100)]
    residuals = [rng.standard_normal(gradient.size).astype(F32) for gradient in gradients]
    for fast in (False, True):
        check_largest(
            CpuOps(vectorized=fast), [residual.copy() for residual in residuals], gradients, [5000, 2, 100, 7]
        )


def reached(magnitudes: NDArray[np.float32], share: float) -> float:
    part = Part("p", torch.empty(0), magnitudes=magnitudes)
    return reached_by(part, share)


def test_a_sample_gives_a_magnitude(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.abs(np.random.default_rng(15).standard_normal(1000).astype(F32))
    ordered = np.sort(values)[::-1]
    for density, rank in ((0, 1), (0.001, 1), (0.07, 70), (0.5, 500), (1, 1000)):
        assert reached(values, density) == ordered[rank - 1]
    for extreme, due in ((np.full(9, MAX, F32), 2.0**119), (np.zeros(9, F32), 2.0**-126)):
        assert reached(extreme, 0.5) == due
    assert reached(np.empty(0, F32), 0.5) == 2.0**-126
    close = (1 + np.arange(3000) * np.finfo(F32).eps).astype(F32)
    for rank in (1, 2, 1500, 3000):
        assert topk.rank_of(close, rank) == np.sort(close)[-rank]
