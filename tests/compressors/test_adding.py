"""What workers sent for a bucket, summed in one pass: as zeros, added to by rank, and divided."""

import numpy as np
import torch
from cases import in_turn
from messages import segments_of
from updates import random_update

from taugrad.compressors.bucket.compressor import sum_all
from taugrad.compressors.ops.cpu.passes import CPU
from taugrad.compressors.ops.limits import Form
from taugrad.compressors.ops.segments import Segments
from taugrad.compressors.wire.update import Update


def check_sum(updates: list[Update], divisor: int, n: int) -> None:
    expected = np.zeros(n, np.float32)
    for update in updates:
        amounts = update.amounts(CPU)
        for where, part in update.places():
            expected[where] += amounts[part]
    total = torch.full((n,), torch.nan)
    sum_all([[update] for update in updates], divisor, total, CPU)
    assert total.numpy().tobytes() == (expected / np.float32(divisor)).tobytes()


@in_turn("form", ["strom", "qgt", "f32", "bgt"])
@in_turn("divisor", [1, 2, 3, 7, 8])
@in_turn("density", [0.0005, 0.02, 0.4])
def test_sparse_updates(form: Form, divisor: int, density: float) -> None:
    """Also where parameters that are sent otherwise lie between."""
    rng, n = np.random.default_rng(divisor), 50_000
    whole = segments_of([1, 20_000, 9000, n - 29_001])
    some = Segments((1, 3), whole.starts[[1, 3]], whole.sizes[[1, 3]])
    check_sum(
        [
            random_update("packed32", form, update.n, int(density * update.n), rng, update)
            for update in (whole, some, whole, some, whole)
        ],
        divisor,
        n,
    )


@in_turn("form", ["linear", "quantile", "fp8", "fp16", "bf16", "f32"])
def test_whole_parameters(form: Form) -> None:
    """Some of them held back by one worker or by all; the bucket larger than what is summed together."""
    segments, rng = segments_of([300_000, 7, 4000, 90_000]), np.random.default_rng(1)
    updates = [random_update("every", form, segments.n, 0, rng, segments) for _ in range(3)]
    for several in (updates, [updates[0]] * 3):
        check_sum(several, 3, segments.n)


def test_nothing() -> None:
    nothing = np.empty(0, np.uint32), np.zeros(1, np.int64)
    check_sum([Update("f32", segments_of([10]), *nothing)], 2, 10)
    check_sum([], 2, 10)
