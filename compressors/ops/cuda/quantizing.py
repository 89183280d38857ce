"""The quantizing passes on a device: they write the bits of those of ops/cpu. Nothing here waits.

Every pass adds a gradient, float32 [n], to a residual (None for zeros that nobody keeps), and keeps there
what its symbols leave out. Where its report tells of sums that are not finite, the residual has gained the
gradient, to rounding, but for the elements concerned, and nothing else means anything.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..readback import Slot
from ..results import HalfFormat
from ..segments import block_count, block_length
from .device import Device, DeviceArray
from .reports import Reports

_PIECE = 4096
"""Elements that a block of threads works on, at most; see blockwise.cuh."""
_ITEMS = 16
_BIN_THREADS = 128
"""Of the block of threads that finds one bin's mean."""


class Grid(NamedTuple):
    """A launch over n elements in blocks."""

    block: int
    """Elements of a block; the last one may be shorter."""
    blocks: int
    launched: int
    """Blocks of threads: one for each piece of a block of elements."""
    threads: int

    @property
    def whole(self) -> bool:
        """Whether a block of elements is one piece."""
        return self.block <= _PIECE


def lay_out(n: int, block: int) -> Grid:
    """The grid over n elements in blocks of `block`, 0 for one block: 16 elements a thread."""
    length, blocks = block_length(n, block), block_count(n, block)
    warps = -(-min(length, _PIECE) // (_ITEMS * 32))
    return Grid(length, blocks, blocks * -(-length // _PIECE), 32 * warps)


def _width(symbols: Any) -> int:
    """Bits of the integers that symbols lie in."""
    return 8 * int(symbols.dtype.itemsize)


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
        low, high = self.slot.values.reshape(-1, 2).T
        keys = np.stack((~low, high))
        bits = np.where(keys >> 31, keys ^ np.uint32(1 << 31), ~keys)
        return not np.isfinite(bits.view(np.float32)).all()


def extremes(
    device: Device,
    residual: Any | None,
    gradient: Any,
    block: int,
    reports: Reports,
    slot: Slot | None = None,
) -> Ranges:
    """Adds a gradient to a residual, and finds the smallest and the largest element of every block."""
    n = int(gradient.size)
    grid = lay_out(n, block)
    keys = device.zeros(2 * grid.blocks, np.uint32) if slot is None else slot.array
    ranges = Ranges(keys, reports.begin(), reports, slot)
    device.launch(
        "linear", "find_ranges", grid.launched, grid.threads,
        residual or 0, gradient, n, grid.block, ranges.keys, ranges.report,
    )  # fmt: skip
    return ranges


def linear_pass(
    device: Device, residual: Any | None, gradient: Any, bits: int, block: int, symbols: Any, lows: Any,
    steps: Any, reports: Reports, ranges: Ranges | None = None,
) -> None:  # fmt: skip
    """Uniform bins (`ops.cpu.linear`); with ranges, what these were found of."""
    n, grid, width = int(gradient.size), lay_out(int(gradient.size), block), _width(symbols)
    if grid.whole and ranges is None:
        report = reports.begin()
        device.launch(
            "linear", f"quantize_blocks_{width}", grid.launched, grid.threads,
            residual or 0, gradient, n, grid.block, bits, symbols, lows, steps, report,
        )  # fmt: skip
        if residual is not None:
            linear_values(device, symbols, block, lows, steps, residual, True, report)
        return
    ranges = ranges or extremes(device, residual, gradient, block, reports)
    device.launch(
        "linear", f"quantize_pieces_{width}", grid.launched, grid.threads,
        residual or 0, gradient, n, grid.block, ranges.keys, bits, symbols, lows, steps, ranges.report,
    )  # fmt: skip


def linear_values(
    device: Device, symbols: Any, block: int, lows: Any, steps: Any, out: Any, add: bool, report: Any = 0
) -> None:
    """Writes, or adds, what symbols stand for; with a report, only where that tells of what is not finite."""
    n = int(symbols.size)
    grid = lay_out(n, block)
    device.launch(
        "linear", f"values_{_width(symbols)}", grid.launched, grid.threads,
        symbols, n, grid.block, 0, lows, steps, out, int(add), report,
    )  # fmt: skip


def half_pass(
    device: Device, kind: HalfFormat, residual: Any | None, gradient: Any, symbols: Any, reports: Reports
) -> None:
    """A 16-bit float, whose bits are the symbols (`ops.cpu.minifloat`)."""
    n = int(gradient.size)
    grid, report = lay_out(n, 0), reports.begin()
    device.launch("minifloat", kind, grid.launched, grid.threads, residual or 0, gradient, n, symbols, report)
    if residual is not None:
        half_values(device, kind, symbols, residual, True, report)


def half_values(device: Device, kind: HalfFormat, symbols: Any, out: Any, add: bool, report: Any = 0) -> None:
    """As `linear_values`."""
    n = int(symbols.size)
    grid = lay_out(n, 0)
    device.launch(
        "minifloat", f"{kind}_values", grid.launched, grid.threads, symbols, n, out, int(add), report
    )


def fp8_pass(
    device: Device, residual: Any | None, gradient: Any, block: int, symbols: Any, exponents: Any,
    reports: Reports,
) -> None:  # fmt: skip
    """Scaled float8 e4m3fn (`ops.cpu.minifloat`)."""
    n = int(gradient.size)
    grid = lay_out(n, block)
    if grid.whole:
        report = reports.begin()
        device.launch(
            "minifloat", "fp8_blocks", grid.launched, grid.threads,
            residual or 0, gradient, n, grid.block, symbols, exponents, report,
        )  # fmt: skip
        if residual is not None:
            fp8_values(device, symbols, block, exponents, residual, True, report)
        return
    ranges = extremes(device, residual, gradient, block, reports)
    device.launch(
        "minifloat", "fp8_pieces", grid.launched, grid.threads,
        residual or 0, gradient, n, grid.block, ranges.keys, symbols, exponents, ranges.report,
    )  # fmt: skip


def fp8_values(
    device: Device, symbols: Any, block: int, exponents: Any, out: Any, add: bool, report: Any = 0
) -> None:
    """As `linear_values`."""
    n = int(symbols.size)
    grid = lay_out(n, block)
    device.launch(
        "minifloat", "fp8_values", grid.launched, grid.threads,
        symbols, n, grid.block, exponents, out, int(add), report,
    )  # fmt: skip


def quantile_pass(
    device: Device, residual: Any | None, gradient: Any, bits: int, block: int, symbols: Any, tables: Any,
    exponents: Any, reports: Reports,
) -> None:  # fmt: skip
    """Bins of equal population (`ops.cpu.quantile`)."""
    n, width = int(gradient.size), _width(symbols)
    grid = lay_out(n, block)
    # Looked at first, as on the CPU: where a sum is not finite nothing is quantized.
    ranges = extremes(device, residual, gradient, block, reports)
    if grid.whole:
        padded = 1 << (grid.block - 1).bit_length()
        device.launch(
            "quantile", f"quantize_blocks_{width}", grid.launched, grid.threads,
            residual or 0, gradient, n, grid.block, ranges.keys, padded, bits, symbols, tables, exponents,
            ranges.report,
        )  # fmt: skip
        return
    keys = _sorted_keys(device.tensor(residual or gradient), grid)
    device.launch(
        "quantile", "find_means", grid.blocks << bits, _BIN_THREADS,
        keys, n, grid.block, ranges.keys, bits, tables, exponents, ranges.report,
    )  # fmt: skip
    device.launch(
        "quantile", f"quantize_pieces_{width}", grid.launched, grid.threads,
        residual or 0, gradient, n, grid.block, keys, bits, symbols, tables, exponents, ranges.report,
    )  # fmt: skip


def _sorted_keys(a: Tensor, grid: Grid) -> Any:
    """The order keys of float32 [n], sorted in each block, uint32 [blocks * block]; -0.0 is 0.0."""
    bits = (a + 0).view(torch.int32)  # -0.0 + 0 is 0.0
    keys = torch.full((grid.blocks, grid.block), 2**31 - 1, dtype=torch.int32, device=a.device)
    keys.view(-1)[: a.numel()] = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    unsigned = keys.sort(dim=1).values.view(-1) ^ -(2**31)
    return DeviceArray(unsigned.view(torch.uint8), np.dtype(np.uint32))


def quantile_values(
    device: Device, symbols: Any, block: int, tables: Any, exponents: Any, out: Any, add: bool
) -> None:
    """As `linear_values`."""
    n, bits = int(symbols.size), (int(tables.size) // max(1, int(exponents.size))).bit_length() - 1
    grid = lay_out(n, block)
    device.launch(
        "quantile", f"values_{_width(symbols)}", grid.launched, grid.threads,
        symbols, n, grid.block, bits, tables, exponents, out, int(add),
    )  # fmt: skip
