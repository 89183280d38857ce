"""Facts about gradients and residuals that no pass visits, on a device. Nothing here waits."""

from typing import Any

import numpy as np

from ..cpu.ordered_sum import TILE
from .reports import GradientType, Reports
from .runtime import Runtime

_THREADS = 256


def _launch(runtime: Runtime, kernel: str, n: int, *arguments: Any) -> None:
    runtime.launch("looking", kernel, -(-n // TILE), _THREADS, *arguments)


def find_nonzero(runtime: Runtime, values: Any, found: Any, *, gradient_type: GradientType) -> None:
    """Sets found, int32 [1], to 1 where an element of values, [n] of `gradient_type`, is not zero."""
    n = int(values.size)
    _launch(runtime, f"find_nonzero_{gradient_type}", n, values, n, found)


def count_nonfinite(runtime: Runtime, values: Any, reports: Reports, *, gradient_type: GradientType) -> None:
    """A pass that sends nothing: its report tells whether an element of values, [n], is not finite."""
    n = int(values.size)
    _launch(runtime, f"count_nonfinite_{gradient_type}", n, values, n, reports.begin())


def add_squares(runtime: Runtime, values: Any, total: Any) -> None:
    """Adds to total, float64 [1], the squares of values, float32 [n], in any order."""
    n = int(values.size)
    _launch(runtime, "squares", n, values, n, total)


def ordered_sum_of_squares(runtime: Runtime, values: Any, total: Any) -> None:
    """Writes to total, float64 [1], the sum of `ops.cpu.ordered_sum` of values, float32 [n], n at least 1."""
    kernel, n = "sum_squares", int(values.size)
    while True:
        tiles = -(-n // TILE)
        sums = total if tiles == 1 else runtime.empty(tiles, np.float64)
        _launch(runtime, kernel, n, values, n, sums)
        if tiles == 1:
            return
        kernel, values, n = "sum_sums", sums, tiles


def sample(runtime: Runtime, values: Any, taken: Any) -> None:
    """Writes to taken, float32 [m], the values at `stratified_positions(n, m)` of float32 [n]."""
    n, m = int(values.size), int(taken.size)
    runtime.launch("looking", "sample", -(-m // _THREADS), _THREADS, values, n, m, taken)
