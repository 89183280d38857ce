"""The quantizing passes on a device: they write the bits of those of ops/cpu.

Where a pass reports sums that are not finite, the residual has gained the gradient, to rounding,
but for the elements concerned, and nothing else means anything.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ...method.base import Form
from ..interface import Batch, Flags, Kept, Ops, Quantizing
from ..readback import Pending, Readback, Slot
from ..segments import Numbers, Offsets
from .device import Device, DeviceArray, float_bits
from .grids import THREADS, TILE, Grid, Reports, part_table

_ITEMS = TILE // THREADS
_MOST_GRIDS = 256
_BIN_THREADS = 128
"""Of the block of threads that finds one bin's mean."""


Layout: TypeAlias = tuple[int, Numbers] | tuple[int, Numbers, Numbers, Numbers]
"""Threads of a tile, and tiles of each parameter; with blocks, their length and the first of each, too."""


def threads_for(length: int) -> int:
    """Threads for tiles of so many elements, 16 for a thread; larger ones are gone over several times."""
    return 32 * max(1, -(-min(length, TILE) // (_ITEMS * 32)))


def _width(symbols: Any) -> int:
    """Bits of the integers that symbols lie in."""
    return 8 * int(symbols.dtype.itemsize)


@dataclass(frozen=True, eq=False)
class DeviceRanges:
    """The ranges of all blocks, on the device."""

    slot: Slot
    """uint32 [2 * blocks]: of each block the complement of its smallest element's order key, and its largest
    one's; order keys as in blockwise.cuh."""
    reports: Reports
    """Of the pass that found them."""

    @cached_property
    def _ends(self) -> NDArray[np.float32]:
        """The smallest and the largest element of blocks, float32 [blocks, 2], once the slot was fetched."""
        keys = self.slot.values.reshape(-1, 2) ^ np.array([0xFFFFFFFF, 0], np.uint32)
        bits = np.where(keys >> 31, keys ^ np.uint32(1 << 31), ~keys)
        return bits.view(np.float32) + np.float32(0)  # -0.0 + 0.0 is 0.0

    @property
    def low(self) -> NDArray[np.float32]:
        """See `ops.interface.Ranges`."""
        return self._ends[:, 0]

    @property
    def high(self) -> NDArray[np.float32]:
        """See `ops.interface.Ranges`."""
        return self._ends[:, 1]

    @property
    def nonfinite(self) -> Flags:
        """See `ops.interface.Ranges`."""
        return np.asarray(~np.isfinite(self._ends).all(axis=1))


class QuantizingOps(Device, Ops):
    """See the module's text, and `Ops`."""

    def __init__(self, device: torch.device) -> None:
        """On a device of torch's."""
        super().__init__(device)
        self._grids: dict[tuple[int, int, bytes], Grid] = {}

    def grid(self, batch: Batch, kind: Hashable, lay_out: Callable[[], Layout]) -> Grid:
        """Tiles of a batch: made once, and not again for another batch with the same addresses."""
        found: Grid | None = batch.laid_out.get((self.stream, kind))
        if found is not None:
            return found
        threads, tiles, *blocks = lay_out()
        table = part_table(batch, tiles, *blocks)
        key = self.stream, threads, table.tobytes() + tiles[-1:].tobytes()
        found = self._grids.get(key)
        if found is None:
            if len(self._grids) >= _MOST_GRIDS:
                self._grids.clear()
            here = np.repeat(np.arange(len(batch)), tiles)
            parts, owners = self.place_all([table, here.astype(np.uint32)])
            found = self._grids[key] = Grid(parts, owners, here, len(batch), threads)
        batch.laid_out[self.stream, kind] = found
        return found

    def _blocks(self, batch: Batch, block: int, offsets: Offsets) -> tuple[Grid, int]:
        """The pieces of all blocks, of TILE elements at most; and elements of the longest block."""
        longest = int(batch.sizes.max(initial=1))
        longest = min(longest, block or longest)

        def lay_out() -> Layout:
            lengths = np.maximum(1, np.minimum(batch.sizes, block or batch.sizes))
            return threads_for(longest), offsets.blocks * -(-lengths // TILE), lengths, offsets.firsts

        return self.grid(batch, ("blocks", block), lay_out), longest

    def _pass(self, source: str, kernel: str, grid: Grid, *arguments: Any) -> None:
        self.launch(source, kernel, grid.tiles, grid.threads, *grid.pair, *arguments)

    def _find_ranges(self, grid: Grid, blocks: int, readback: Readback) -> DeviceRanges:
        ranges = DeviceRanges(readback.take(2 * blocks, np.uint32), Reports(grid, readback))
        self._pass("linear", "find_ranges", grid, ranges.slot.array, *ranges.reports.arrays)
        return ranges

    def extremes(self, batch: Batch, readback: Readback) -> DeviceRanges:
        grid, _ = self._blocks(batch, 0, Offsets.of(batch.sizes, 0))
        return self._find_ranges(grid, len(batch), readback)

    def quantize(
        self, form: Form, work: Quantizing, tables: Sequence[Any], readback: Readback
    ) -> Pending[Kept]:
        batch, symbols, bits, offsets = work.batch, work.symbols, work.bits, work.offsets
        grid, longest = self._blocks(batch, work.block, offsets)
        width, whole = _width(symbols), longest <= TILE
        if form == "quantile":
            ranges = self._find_ranges(grid, offsets.all_blocks, readback)
            last = bits, symbols, *tables, *ranges.reports.arrays
            if whole:
                padded = 1 << (longest - 1).bit_length()
                self._pass("quantile", f"quantize_blocks_{width}", grid, ranges.slot.array, padded, *last)
            else:
                keys = self._find_means(grid, work, ranges, tables)
                self._pass("quantile", f"quantize_pieces_{width}", grid, keys, *last)
        elif form in ("linear", "fp8") and not whole:
            ranges = self._find_ranges(grid, offsets.all_blocks, readback)
            last = symbols, *tables, *ranges.reports.arrays
            if form == "linear":
                self._pass("linear", f"quantize_pieces_{width}", grid, ranges.slot.array, bits, 0, *last)
            else:
                self._pass("minifloat", "fp8_pieces", grid, ranges.slot.array, *last)
        else:
            reports = Reports(grid, readback)
            last = symbols, *tables, *reports.arrays
            if form == "linear":
                self._pass("linear", f"quantize_blocks_{width}", grid, bits, *last)
            else:
                self._pass("minifloat", "fp8_blocks" if form == "fp8" else form, grid, *last)
            self._add(form, grid, [(symbols, tables)], 0, 0, reports.arrays[0])
            return _kept(reports)
        return _kept(ranges.reports)

    def _find_means(self, grid: Grid, work: Quantizing, ranges: DeviceRanges, tables: Sequence[Any]) -> Any:
        """Writes the tables of blocks larger than a piece; returns sorted keys, uint64 of all elements."""
        keys = self.empty(int(work.batch.sizes.sum()), np.uint64)
        self._pass("quantile", "write_keys", grid, keys)
        ordered = DeviceArray(keys.memory.view(torch.int64).sort().values.view(torch.uint8), keys.dtype)
        offsets, sizes = work.offsets, work.batch.sizes
        lengths = np.minimum(sizes, work.block or sizes)
        tiles = _BIN_THREADS, offsets.blocks, lengths, offsets.firsts
        blocks = self.grid(work.batch, ("means", work.block), lambda: tiles)
        given = *blocks.pair, ordered, ranges.slot.array, work.bits, *tables, ranges.reports.arrays[0]
        self.launch("quantile", "find_means", blocks.tiles << work.bits, _BIN_THREADS, *given)
        return ordered

    def linear_between(
        self, work: Quantizing, bits: Sequence[int], ranges: Any, tables: Sequence[Any], readback: Readback
    ) -> Pending[Kept]:
        grid, _ = self._blocks(work.batch, 0, work.offsets)
        squares = Reports(grid, readback)
        last = work.symbols, *tables, ranges.reports.arrays[0], squares.arrays[1]
        given = ranges.slot.array, 0, self.constant(np.array(bits, np.int64)), *last
        self._pass("linear", f"quantize_pieces_{_width(work.symbols)}", grid, *given)
        return lambda: Kept(squares.squares, ranges.nonfinite)

    def add_values(
        self,
        form: str,
        sources: Sequence[tuple[Any, Sequence[Any]]],
        block: int,
        rows: Numbers,
        out: Any,
        starts: Numbers,
        divisor: int = 0,
    ) -> None:
        sizes = rows[:, 1]
        where = np.stack((out.pointer + 4 * starts, starts, sizes, rows[:, 0]), axis=1)
        offsets = Offsets(rows[:, 0], sizes, rows[:, 2], rows[:, 3])
        grid, _ = self._blocks(Batch(where, (), ()), block, offsets)
        self._add(form, grid, sources, _bits_of(form, sources), divisor)

    def _add(
        self, form: str, grid: Grid, sources: Sequence[tuple[Any, Sequence[Any]]], bits: int, divisor: int,
        report: Any = 0,
    ) -> None:  # fmt: skip
        """Adds what symbols stand for; with a report, only where that tells of what is not finite."""
        pointers = np.zeros((len(sources), 3), np.int64)
        for row, (symbols, tables) in zip(pointers, sources, strict=True):
            row[: 1 + len(tables)] = [symbols.pointer, *[table.pointer for table in tables]]
        source = form if form in ("linear", "quantile") else "minifloat"
        kernel = f"{form}_values_{_width(sources[0][0])}"
        given = self.constant(pointers), len(sources), bits, divisor > 0
        by = float_bits(divisor) if divisor > 1 else 0
        self._pass(source, kernel, grid, *given, by, report)


def _bits_of(form: str, sources: Sequence[tuple[Any, Sequence[Any]]]) -> int:
    """Bits of the symbols of `quantile`, whose tables have an entry for each."""
    if form != "quantile":
        return 0
    exponents, means = sources[0][1]
    return (int(means.size) // max(1, int(exponents.size))).bit_length() - 1


def _kept(reports: Reports) -> Pending[Kept]:
    return lambda: Kept(reports.squares, reports.nonfinite)
