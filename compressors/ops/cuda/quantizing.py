"""The quantizing passes on a device: they write the bits of those of ops/cpu.

Where a pass reports sums that are not finite, the residual has gained the gradient, to rounding,
but for the elements concerned, and nothing else means anything.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...method.base import Form
from ..interface import Ops, QuantizedPass, Quantizing
from ..interface import Ranges as AnyRanges
from ..readback import Pending, Readback, Slot
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


class _One(NamedTuple):
    """A parameter on its way through a pass."""

    residual: Any | None
    gradient: Any
    grid: Grid
    symbols: Any = None
    tables: slice = slice(0, 1)


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

    @cached_property
    def _ends(self) -> NDArray[np.float32]:
        """The smallest and the largest element of the only block, once the slot was fetched."""
        assert self.slot is not None
        low, high = self.slot.values
        keys = np.array([~low, high])
        bits = np.where(keys >> 31, keys ^ np.uint32(1 << 31), ~keys)
        return bits.view(np.float32) + np.float32(0)  # -0.0 + 0.0 is 0.0

    @property
    def low(self) -> np.float32:
        """See `ops.interface.Ranges`."""
        return np.float32(self._ends[0])

    @property
    def high(self) -> np.float32:
        """See `ops.interface.Ranges`."""
        return np.float32(self._ends[1])

    @property
    def nonfinite(self) -> bool:
        """See `ops.interface.Ranges`."""
        return not np.isfinite(self._ends).all()


class QuantizingOps(Device, Ops):
    """See the module's text, and `Ops`."""

    def _one(self, residual: Tensor | None, gradient: Tensor, block: int, *rest: Any) -> _One:
        kept = None if residual is None else self.array(residual)
        return _One(kept, self.array(gradient.float()), lay_out(gradient.numel(), block), *rest)

    def _each(self, work: Quantizing) -> Iterator[_One]:
        """Parameters, with their symbols, and where their tables stand."""
        offsets = work.offsets
        for residual, gradient, at, tables in zip(
            work.residuals, work.gradients, offsets.symbols, offsets.tables, strict=True
        ):
            yield self._one(residual, gradient, work.block, work.symbols[at], tables)

    def _pass(self, source: str, kernel: str, one: _One, *arguments: Any) -> None:
        """Launches a kernel over a parameter, in blocks."""
        grid, n = one.grid, int(one.gradient.size)
        given = one.residual or 0, one.gradient, n, grid.block
        self.launch(source, kernel, grid.launched, grid.threads, *given, *arguments)

    def _find_ranges(self, one: _One, reports: Reports, slot: Slot | None = None) -> Ranges:
        """Adds a gradient to a residual, and finds the smallest and the largest element of every block."""
        keys = self.zeros(2 * one.grid.blocks, np.uint32) if slot is None else slot.array
        ranges = Ranges(keys, reports.begin(), reports, slot)
        self._pass("linear", "find_ranges", one, ranges.keys, ranges.report)
        return ranges

    def _linear_between(self, one: _One, bits: int, lows: Any, steps: Any, ranges: Ranges) -> None:
        kernel = f"quantize_pieces_{_width(one.symbols)}"
        self._pass("linear", kernel, one, ranges.keys, bits, one.symbols, lows, steps, ranges.report)

    def extremes(
        self, given: Sequence[tuple[Tensor | None, Tensor]], readback: Readback, returned: Readback
    ) -> list[AnyRanges]:
        return [
            self._find_ranges(self._one(*each, 0), Reports(1, returned), readback.take(2, np.uint32))
            for each in given
        ]

    def quantize(
        self, form: Form, work: Quantizing, tables: Sequence[Any], returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        reports, blocks = Reports(len(work.gradients), returned), max(1, work.offsets.all_blocks)
        pairs = [(table, table.size // blocks) for table in tables]
        for one in self._each(work):
            first, last = one.tables.start, one.tables.stop
            own = tuple(table[first * width : last * width] for table, width in pairs)
            self._quantize_one(form, one, work, own, reports)
        return lambda: _quantized(reports)

    def _quantize_one(
        self, form: Form, one: _One, work: Quantizing, tables: tuple[Any, ...], reports: Reports
    ) -> None:
        if form == "quantile":  # looked at first, as on the CPU
            self._quantile(one, work.bits, tables, self._find_ranges(one, reports))
        elif form in ("linear", "fp8") and not one.grid.whole:
            ranges = self._find_ranges(one, reports)
            if form == "linear":
                lows, steps = tables
                self._linear_between(one, work.bits, lows, steps, ranges)
            else:
                self._pass("minifloat", "fp8_pieces", one, ranges.keys, one.symbols, *tables, ranges.report)
        else:
            report = reports.begin()
            last = one.symbols, *tables, report
            if form == "linear":
                self._pass("linear", f"quantize_blocks_{_width(one.symbols)}", one, work.bits, *last)
            elif form == "fp8":
                self._pass("minifloat", "fp8_blocks", one, *last)
            else:
                given = one.residual or 0, one.gradient, int(one.gradient.size)
                self.launch("minifloat", form, one.grid.launched, one.grid.threads, *given, *last)
            if one.residual is not None:
                self._add(form, one.symbols, work.block, tables, one.residual, report=report)

    def _quantile(self, one: _One, bits: int, tables: tuple[Any, ...], ranges: Ranges) -> None:
        """Where a sum is not finite nothing is quantized."""
        last, width = (one.symbols, *tables[::-1], ranges.report), _width(one.symbols)
        if one.grid.whole:
            padded = 1 << (one.grid.block - 1).bit_length()
            self._pass("quantile", f"quantize_blocks_{width}", one, ranges.keys, padded, bits, *last)
            return
        keys = _sorted_keys(self.tensor(one.residual or one.gradient), one.grid)
        self.launch(
            "quantile", "find_means", one.grid.blocks << bits, _BIN_THREADS,
            keys, int(one.gradient.size), one.grid.block, ranges.keys, bits, *last[1:],
        )  # fmt: skip
        self._pass("quantile", f"quantize_pieces_{width}", one, keys, bits, *last)

    def linear_between(
        self, work: Quantizing, bits: Sequence[int], ranges: Sequence[AnyRanges], lows: Any, steps: Any
    ) -> Pending[list[QuantizedPass]]:
        known = _known(ranges)
        for one, width, own in zip(self._each(work), bits, known, strict=True):
            if not own.nonfinite:
                self._linear_between(one, width, lows[one.tables], steps[one.tables], own)
        return lambda: [passed for own in known for passed in _quantized(own.reports)]

    def add_values(
        self,
        form: str,
        symbols: Any,
        block: int,
        tables: tuple[Any, ...],
        rows: NDArray[np.int64],
        out: Any,
        starts: NDArray[np.int64],
    ) -> None:
        if form == "quantile":
            exponents, means = tables
            width = int(means.size) // max(1, int(exponents.size))
        for (begin, n, first, blocks), start in zip(rows.tolist(), starts.tolist(), strict=True):
            own, into, last = symbols[begin : begin + n], out[start : start + n], first + blocks
            if form == "f32":
                self.tensor(into).add_(self.tensor(own))
            elif form == "quantile":
                here = means[first * width : last * width], exponents[first:last]
                self._add(form, own, block, here, into, width.bit_length() - 1)
            else:
                self._add(form, own, block, tuple(table[first:last] for table in tables), into)

    def _add(
        self,
        form: str,
        symbols: Any,
        block: int,
        tables: tuple[Any, ...],
        out: Any,
        bits: int = 0,
        report: Any = 0,
    ) -> None:
        """Adds what symbols stand for; with a report, only where that tells of what is not finite."""
        n = int(symbols.size)
        grid = lay_out(n, block)
        source = form if form in ("linear", "quantile") else "minifloat"
        kernel = f"values_{_width(symbols)}" if source == form else f"{form}_values"
        given = symbols, n, grid.block, bits, *tables, out, report
        self.launch(source, kernel, grid.launched if n else 0, grid.threads, *given)


def _sorted_keys(a: Tensor, grid: Grid) -> Any:
    """The order keys of float32 [n], sorted in each block, uint32 [blocks * block]; -0.0 is 0.0."""
    bits = (a + 0).view(torch.int32)  # -0.0 + 0 is 0.0
    keys = torch.full((grid.blocks, grid.block), 2**31 - 1, dtype=torch.int32, device=a.device)
    keys.view(-1)[: a.numel()] = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    unsigned = keys.sort(dim=1).values.view(-1) ^ -(2**31)
    return DeviceArray(unsigned.view(torch.uint8), np.dtype(np.uint32))


def _known(ranges: Sequence[AnyRanges]) -> list[Ranges]:
    """The ranges, which this device has made."""
    return [each for each in ranges if isinstance(each, Ranges)]


def _quantized(reports: Reports) -> list[QuantizedPass]:
    found = reports.fetched()
    return list(map(QuantizedPass, found["squares"].tolist(), (found["nonfinite"] > 0).tolist()))
