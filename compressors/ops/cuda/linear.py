"""Uniform b-bit quantization in blocks on a device; the definition is that of `ops.cpu.linear`.

Arguments are those of `Passes`; `runtime` is the device, where all arrays lie.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cpu.linear import Extremes
from ..readback import Slot
from .blocks import lay_out
from .reports import GradientType, Reports
from .runtime import Runtime


@dataclass(frozen=True)
class Ranges:
    """The range of every block, on the device."""

    keys: Any
    """uint32 [2 * blocks]: of each block the complement of its smallest element's order key, and its largest
    one's; order keys as in blockwise.cuh."""
    report: Any
    """Where the pass that found them reports."""
    reports: Reports
    """Has that report."""
    slot: Slot | None = None
    """Where the keys stand among other results."""

    @property
    def nonfinite(self) -> bool:
        """Whether any is not finite, once the slot was fetched."""
        assert self.slot is not None
        return extremes_of(self.slot.values).nonfinite


def extremes(
    runtime: Runtime,
    residual: Any | None,
    gradient: Any,
    block: int,
    reports: Reports,
    *,
    slot: Slot | None = None,
    gradient_type: GradientType = "float32",
) -> Ranges:
    """Adds a gradient to a residual, and finds the smallest and the largest element of every block.

    Does not wait. The same as `ops.cpu.linear.extremes`, after `fetch_extremes`.
    """
    n = int(gradient.size)
    grid = lay_out(n, block)
    keys = runtime.zeros(2 * grid.blocks, np.uint32) if slot is None else slot.array
    ranges = Ranges(keys, reports.begin(), reports, slot)
    runtime.launch(
        "linear",
        f"find_ranges_{gradient_type}",
        grid.launched,
        grid.threads,
        0 if residual is None else residual,
        gradient,
        n,
        grid.block,
        ranges.keys,
        ranges.report,
    )
    return ranges


def fetch_extremes(runtime: Runtime, ranges: Ranges) -> Extremes:
    """The ranges in the CPU's memory; waits for them."""
    return extremes_of(runtime.fetch(ranges.keys))


def extremes_of(fetched: NDArray[np.uint32]) -> Extremes:
    """The ranges whose keys were fetched."""
    keys = fetched.reshape(-1, 2)
    low, high = ~keys[:, 0], keys[:, 1]
    bits = [np.where(key >> 31, key ^ np.uint32(1 << 31), ~key) for key in (low, high)]
    lows, highs = (each.view(np.float32) + np.float32(0) for each in bits)  # -0.0 + 0.0 is 0.0
    return Extremes(lows, highs, not bool(np.isfinite(lows).all() and np.isfinite(highs).all()))


def linear_pass(
    runtime: Runtime,
    residual: Any | None,
    gradient: Any,
    bits: int,
    block: int,
    symbols: Any,
    lows: Any,
    steps: Any,
    reports: Reports,
    *,
    ranges: Ranges | None = None,
    gradient_type: GradientType = "float32",
) -> None:
    """Quantizes residual + gradient and keeps in the residual what the symbols leave out.

    The same symbols, tables and residual as of `ops.cpu.linear.linear_pass`. Does not wait. Where the
    report tells of sums that are not finite, the residual has gained the gradient, to rounding, but for
    the elements concerned, and nothing else means anything.
    """
    n = int(gradient.size)
    grid, size = lay_out(n, block), 8 * symbols.dtype.itemsize
    kept: Any = 0 if residual is None else residual
    if grid.whole and ranges is None:
        report = reports.begin()
        runtime.launch(
            "linear", f"quantize_blocks_{size}_{gradient_type}", grid.launched, grid.threads,
            kept, gradient, n, grid.block, bits, symbols, lows, steps, report,
        )  # fmt: skip
        if residual is not None:
            _write(runtime, symbols, block, lows, steps, residual, True, report)
        return
    ranges = ranges or extremes(runtime, residual, gradient, block, reports, gradient_type=gradient_type)
    runtime.launch(
        "linear", f"quantize_pieces_{size}_{gradient_type}", grid.launched, grid.threads,
        kept, gradient, n, grid.block, ranges.keys, bits, symbols, lows, steps, ranges.report,
    )  # fmt: skip


def linear_values(
    runtime: Runtime, symbols: Any, block: int, lows: Any, steps: Any, out: Any, add: bool
) -> None:
    """Writes, or adds, the values that symbols stand for. Does not wait."""
    _write(runtime, symbols, block, lows, steps, out, add, 0)


def _write(
    runtime: Runtime,
    symbols: Any,
    block: int,
    lows: Any,
    steps: Any,
    out: Any,
    add: bool,
    report: Any,
) -> None:
    n = int(symbols.size)
    grid = lay_out(n, block)
    runtime.launch(
        "linear", f"values_{8 * symbols.dtype.itemsize}", grid.launched, grid.threads,
        symbols, n, grid.block, 0, lows, steps, out, int(add), report,
    )  # fmt: skip
