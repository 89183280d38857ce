"""Dense methods take all parameters of a bucket in one call: each as if it were alone."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from cases import in_turn
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad.compressors.config import read_config
from taugrad.compressors.ops.cpu.ops import CpuOps
from taugrad.compressors.ops.offsets import block_count, offsets_of
from taugrad.compressors.ops.results import QuantizedPass
from taugrad.compressors.ops.returns import Pending, Returns, run
from taugrad.compressors.quantizers.base import Given, Outcome, Work

BLOCKWISE = ["linear(8, block={})", "linear(11, block={})", "quantile(3, block={})", "fp8(block={})"]
METHODS = [*BLOCKWISE, "fp16", "bf16"]
Floats = torch.Tensor


def applied(
    line: str, kept: list[Floats | None], gradients: list[Floats], threads: int, *, at_once: bool
) -> list[Outcome]:
    ops, config = CpuOps(threads), read_config(line)
    returns = Returns(ops)
    work, each = Work(ops, returns, returns), [Given(*pair) for pair in zip(kept, gradients, strict=True)]
    if at_once:
        found = run(returns, config.apply_all(each, work))
        return [Outcome(*pair) for pair in zip(found.values, map(_now, found.passed()), strict=True)]
    return [run(returns, config.apply(one.residual, one.gradient, work)) for one in each]


def _now(passed: QuantizedPass) -> Pending[QuantizedPass]:
    return lambda: passed


def told(outcome: Outcome) -> tuple[Any, ...]:
    """All that it says, to the bit."""
    passed, values = outcome.passed(), outcome.values
    if passed.nonfinite:
        return (passed,)
    if isinstance(values, np.ndarray):
        return passed, values.tobytes()
    tables = [each.tobytes() for each in values.tables()]
    return passed, values.bits, values.block, values.symbols.tobytes(), *tables


def drawn(random: np.random.Generator, n: int) -> Floats:
    return torch.from_numpy(random.normal(size=n).astype(np.float32))


def check(line: str, kept: list[Floats | None], gradients: list[Floats], threads: int) -> None:
    """All at once against one by one."""
    alone = [None if each is None else each.clone() for each in kept]
    here = applied(line, kept, gradients, threads, at_once=True)
    there = applied(line, alone, gradients, 1, at_once=False)
    assert [told(one) for one in here] == [told(other) for other in there]
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


@given(sizes=st.lists(st.integers(1, 5000), max_size=20), block=st.sampled_from([0, 1, 64, 2048]))
def test_offsets_do_not_overlap_and_are_aligned(sizes, block):
    found = offsets_of(tuple(sizes), block)
    counts = [block_count(n, block) for n in sizes]
    for slices, lengths, whole in (
        (found.symbols, sizes, found.all_symbols),
        (found.tables, counts, found.all_blocks),
    ):
        assert [each.stop - each.start for each in slices] == lengths
        assert all(each.start % 16 == 0 for each in slices)
        assert all(one.stop <= other.start for one, other in pairwise(slices))
        assert whole == (slices[-1].stop if slices else 0)
