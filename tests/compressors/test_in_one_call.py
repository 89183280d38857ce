"""Dense methods take all parameters of a bucket in one call: each as if it were alone."""

from typing import Any

import numpy as np
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.method import read_config
from taugrad.compressors.ops.cpu.passes import CpuOps
from taugrad.compressors.ops.readback import Readback
from taugrad.compressors.ops.segments import Offsets
from taugrad.compressors.quantizers.base import Given, Work, quantization_of

BLOCKWISE = ["linear(8, block={})", "linear(11, block={})", "quantile(3, block={})", "fp8(block={})"]
METHODS = [*BLOCKWISE, "fp16", "bf16", "entropy", "entropy(form='rms')"]
Floats = torch.Tensor


def applied(
    line: str, kept: list[Floats | None], gradients: list[Floats], threads: int
) -> list[tuple[Any, ...]]:
    """What is made of each parameter, to the bit."""
    ops, config = CpuOps(threads), read_config(line)
    readback = Readback(ops)
    given = [Given(*pair) for pair in zip(kept, gradients, strict=True)]
    made = quantization_of(config).apply(given, Work(ops, readback, readback))
    offsets = Offsets.of(np.array([each.numel() for each in gradients]), made.block)
    told = []
    of_each = zip(made.passed(), made.bits, offsets.symbols, offsets.tables, strict=True)
    for passed, bits, symbols, blocks in of_each:
        tables = [table.reshape(offsets.all_blocks, -1)[blocks].tobytes() for table in made.tables]
        if passed.nonfinite:
            told.append((passed,))
        else:
            # Squares are a metric; their last bits depend on how wide neighbours' symbols are.
            squares = "about" if line.startswith("entropy") else passed.residual_squares
            told.append((squares, bits, made.values[symbols].tolist(), *tables))
    return told


def drawn(random: np.random.Generator, n: int) -> Floats:
    return torch.from_numpy(random.normal(size=n).astype(np.float32))


def check(line: str, kept: list[Floats | None], gradients: list[Floats], threads: int) -> None:
    """All at once against one by one."""
    alone = [None if each is None else each.clone() for each in kept]
    there = [applied(line, [own], [gradient], 1)[0] for own, gradient in zip(alone, gradients, strict=True)]
    assert applied(line, kept, gradients, threads) == there
    for one, other in zip(kept, alone, strict=True):
        assert one is None or one.numpy().tobytes() == other.numpy().tobytes()


@settings(max_examples=40, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    block=st.sampled_from([0, 1, 100, 2048]),
    sizes=st.lists(st.sampled_from([1, 7, 100, 2048, 2049, 40_000]), min_size=1, max_size=6),
    keeps=st.lists(st.booleans(), min_size=6, max_size=6),
    bad=st.lists(st.integers(0, 11), max_size=2),
    halves=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_each_parameter_is_as_if_it_were_alone(method, block, sizes, keeps, bad, halves, threads, seed):
    random = np.random.default_rng(seed)
    gradients = [drawn(random, n) for n in sizes]
    for number in bad:
        if number < len(sizes):
            gradients[number][random.integers(sizes[number])] = float("nan")
    if halves:
        gradients = [each.bfloat16() for each in gradients]
    kept = [drawn(random, n) if keep else None for n, keep in zip(sizes, keeps, strict=False)]
    check(method.format(block), kept, gradients, threads)


@in_turn("method", BLOCKWISE)
def test_a_block_may_be_larger_than_a_piece(method):
    sizes, random = [5, 2**20 + 3, 70_000], np.random.default_rng(0)
    check(method.format(0), [drawn(random, n) for n in sizes], [drawn(random, n) for n in sizes], 2)
