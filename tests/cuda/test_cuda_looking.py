"""Looks at gradients on the emulated device, and works that wait together."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import in_turn

from taugrad.compressors.ops.cpu.ordered_sum import ordered_sum_of_squares
from taugrad.compressors.ops.cpu.sampling import stratified_positions
from taugrad.compressors.ops.cuda import looking
from taugrad.compressors.ops.cuda.reports import Reports
from taugrad.compressors.ops.readback import Readback

F32 = np.float32


def test_the_source_compiles(compiles: Callable[[str], None]) -> None:
    compiles("looking")


@in_turn("n", [0, 1, 31, 33, 4096, 4097, 70_001])
def test_looks_at_a_gradient(n: int, device: Any) -> None:
    values = np.random.default_rng(n).standard_normal(n).astype(F32)
    total, found = device.zeros(1, np.float64), device.zeros(1, np.int32)
    looking.add_squares(device, values, total)
    assert total[0] == pytest.approx(math.fsum(float(each) ** 2 for each in values), rel=1e-12)
    looking.find_nonzero(device, values, found, gradient_type="float32")
    assert found[0] == (n > 0)
    looking.find_nonzero(
        device, np.full(n, -0.0, F32), zeros := device.zeros(1, np.int32), gradient_type="float32"
    )
    assert zeros[0] == 0
    if not n:
        return
    ordered = device.zeros(1, np.float64)
    looking.ordered_sum_of_squares(device, values, ordered)
    assert ordered[0] == ordered_sum_of_squares(values)
    m = min(n, 300)
    taken = device.empty(m, F32)
    looking.sample(device, values, taken)
    assert (taken == values[stratified_positions(n, m)]).all()
    for broken in (np.nan, np.inf):
        values[n // 2] = broken
        reports = Reports(device, 2)
        for _ in range(2):
            looking.count_nonfinite(device, values, reports, gradient_type="float32")
            values[n // 2] = 1
        assert [each.nonfinite for each in reports.fetch()] == [True, False]


@in_turn("n", [1, 255, 256, 4097, 70_001])
def test_the_order_of_a_sum_is_the_definitions(n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n).astype(F32)

    def tile_sum(tile: list[float]) -> float:
        lanes = [0.0] * 256
        for i, number in enumerate(tile):
            lanes[i % 256] += number
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        return lanes[0]

    sums = [float(each) ** 2 for each in values]
    first = True
    while len(sums) > 1 or first:
        sums, first = [tile_sum(sums[i : i + 4096]) for i in range(0, len(sums), 4096)], False
    assert ordered_sum_of_squares(values) == sums[0]


def test_results_stand_in_few_arrays_and_are_fetched_together(device: Any) -> None:
    readback = Readback(device)
    slots = [readback.take(size, np.int32) for size in (5000, 3, 9000)]  # more than an array has room for
    for number, slot in enumerate(slots):
        slot.array[0] = number
    readback.fetch()
    assert [slot.values[0] for slot in slots] == [0, 1, 2]
    assert [slot.values.size for slot in slots] == [5000, 3, 9000]
