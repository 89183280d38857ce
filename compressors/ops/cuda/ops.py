"""The passes on a device: they write the bits of those of ops/cpu. Nothing waits, but for what `Ops` says.

A pass over a batch is a fixed number of launches. What they go by is laid out on the device once, and again
when an address, a size or a threshold is another.

Where a quantizing pass reports sums that are not finite, the residual has gained the gradient, to rounding,
but for the elements concerned, and nothing else means anything.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..array import Flags, Floats32, Floats64, Numbers
from ..cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..interface import (
    SMALLEST_TAU,
    Batch,
    Extremes,
    Form,
    Kept,
    Offsets,
    Pending,
    Quantizing,
    Readback,
    Selected,
    Slot,
    Sources,
    Target,
    ThresholdRule,
    check_chunks,
    scales_of,
)
from .device import Device, float_bits

TILE, THREADS = 4096, 256
"""Elements that a block of threads works on together, and how many threads it has."""
_ITEMS = TILE // THREADS
_KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_REPORT = 3
"""int64 of a report: words after the parameter, how many sums are not finite, the bits of tau."""
_MOST_GRIDS = 256
_BIN_THREADS = 128
"""Threads of the block that finds one bin's mean."""
_MOST_COUNTING = 1024
"""Blocks of threads that count: all that an H100 or H200 runs at once."""
_LEVELS, _BINS = 3, 2048
_INFINITE = 0x7F800000
"""The bits of an infinite magnitude; a NaN's are more."""
_TAUS, _LEVELS_BESIDE, _VALUES, _CLEAR = range(4)
"""What words stand for, in words.cu."""

Layout: TypeAlias = tuple[int, Numbers] | tuple[int, Numbers, Numbers, Numbers]
"""Threads of a tile, and tiles of each parameter; with blocks, their length and the first of each, too."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Tiles of all parameters, one after the other, each for a block of threads."""

    parts: Any
    """int64 [m, 8] on the device."""
    owners: Any
    """uint32 [tiles] on the device, whose they are."""
    owners_here: Numbers
    parameters: int
    threads: int

    @property
    def tiles(self) -> int:
        """How many there are."""
        return self.owners_here.size


def part_table(batch: Batch, tiles: Numbers, block: Any = 0, first_block: Any = 0) -> Numbers:
    """The parameters as kernels take them, int64 [m, 8]; TypeError unless gradients have 32 or 16 bits."""
    table = np.zeros((len(batch), 8), np.int64)
    table[:, :4] = batch.rows
    table[:, 4] = np.cumsum(tiles) - tiles
    if others := batch.dtypes - {torch.float32}:
        if unknown := others - set(_KINDS):
            raise TypeError(f"gradients of {unknown.pop()}: methods take float32, float16 and bfloat16")
        kinds = [_KINDS[gradient.dtype] for gradient in batch.gradients]
        table[:, 5] = kinds if len(kinds) == len(batch) else kinds[0]
    table[:, 6], table[:, 7] = block, first_block
    return table


class Reports:
    """The results of a pass over a grid, among others that are fetched together."""

    def __init__(self, grid: Grid, readback: Readback) -> None:
        self._grid = grid
        self._rows = readback.take(_REPORT * grid.parameters, np.int64)
        self._squares = readback.take(grid.tiles, np.float64)
        self.arrays = self._rows.array, self._squares.array
        """A kernel's last arguments."""

    def kept(self) -> Kept:
        """Returns what a quantizing pass kept."""
        grid, nonfinite = self._grid, self._rows.values.reshape(-1, _REPORT)[:, 1] > 0
        squares = np.bincount(
            grid.owners_here, self._squares.values, grid.parameters
        )  # by parameter, in order
        return Kept(squares.astype(np.float64, copy=False), nonfinite)

    def selected(self, taus: Floats32 | None = None) -> Selected:
        """Returns what a sparse pass kept, with the taus that it reports if none are given."""
        rows, (squares, nonfinite) = self._rows.values.reshape(-1, _REPORT), self.kept()
        reported = np.ascontiguousarray(rows[:, 2]).astype(np.uint32).view(np.float32)
        return Selected(rows[:, 0], squares, nonfinite, reported if taus is None else taus)


class CudaOps(Device):
    """See `Ops` and `Device`. Arrays are tensors."""

    on_host = False

    def __init__(self, device: torch.device, threads: int = 1) -> None:
        super().__init__(device)
        self.threads = threads
        self._grids: dict[tuple[int, int, bytes], Grid] = {}

    def grid(self, batch: Batch, kind: Hashable, lay_out: Callable[[], Layout]) -> Grid:
        """Tiles of a batch: made once, and not again for another batch with the same addresses."""
        grid: Grid | None = batch.laid_out.get((self.stream, kind))
        if grid is not None:
            return grid
        threads, tiles, *blocks = lay_out()
        table = part_table(batch, tiles, *blocks)
        key = self.stream, threads, table.tobytes() + tiles[-1:].tobytes()
        grid = self._grids.get(key)
        if grid is None:
            if len(self._grids) >= _MOST_GRIDS:
                self._grids.clear()
            owners_here = np.repeat(np.arange(len(batch)), tiles)
            parts, owners = self.place_all([table, owners_here.astype(np.uint32)])
            grid = self._grids[key] = Grid(parts, owners, owners_here, len(batch), threads)
        batch.laid_out[self.stream, kind] = grid
        return grid

    def _blocks(self, batch: Batch, block: int, offsets: Offsets) -> tuple[Grid, int]:
        """The pieces of all blocks, of TILE elements at most; and elements of the longest block."""
        longest = int(batch.sizes.max(initial=1))
        longest = min(longest, block or longest)

        def lay_out() -> Layout:
            lengths = np.maximum(1, np.minimum(batch.sizes, block or batch.sizes))
            return threads_for(longest), offsets.blocks * -(-lengths // TILE), lengths, offsets.firsts

        return self.grid(batch, ("blocks", block), lay_out), longest

    def _pass(self, source: str, kernel: str, grid: Grid, *arguments: Any) -> None:
        self.launch(source, kernel, grid.tiles, grid.threads, grid.parts, grid.owners, *arguments)

    def target(self, elements: int, rule: ThresholdRule, readback: Readback) -> Target:
        beside = 0 if rule in WITHOUT_VALUES else elements
        return Target(self.empty(elements, np.uint32), self.empty(beside, VALUE_DTYPE[rule]), readback)

    def _tiled(self, batch: Batch) -> Grid:
        """Tiles of TILE elements, which may begin up to three elements before a parameter's first."""
        return self.grid(batch, "tiles", lambda: (THREADS, (batch.sizes + 3 + TILE - 1) // TILE))

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> Flags:
        readback = Readback(self)
        largest = readback.take(len(gradients), np.uint32)
        self._pass("looking", "largest", self._tiled(_looked_at(gradients)), largest.array)
        readback.fetch()
        return np.asarray(largest.values > 0)

    def gather(self, gradients: Sequence[Tensor], readback: Readback) -> tuple[Any, Pending[Flags]]:
        largest = readback.take(len(gradients), np.uint32)
        self._pass("looking", "largest", self._tiled(_looked_at(gradients)), largest.array)
        return torch.cat(list(gradients)).float(), lambda: np.asarray(largest.values >= _INFINITE)

    def squares(self, tensors: Sequence[Tensor | None], readback: Readback) -> Pending[Floats64]:
        kept, results = [tensor for tensor in tensors if tensor is not None], np.zeros(len(tensors))
        norms = readback.take(len(kept), np.float64)
        if kept:
            torch.stack(torch._foreach_norm(kept, 2, torch.float64), out=norms.array)

        def fetched() -> Floats64:
            results[[tensor is not None for tensor in tensors]] = norms.values**2
            return results

        return fetched

    def exact_squares(self, batch: Batch, readback: Readback) -> Pending[Floats64]:
        grid, first = self._tiled(batch), Readback(self)
        largest = first.take(len(batch), np.uint32)
        self._pass("looking", "largest", grid, largest.array)
        first.fetch()
        scales = scales_of(largest.values.view(np.float32), batch.sizes)
        totals = readback.take(len(batch), np.int64)
        self._pass("looking", "exact_squares", grid, *self.place_all([scales]), totals.array)
        return lambda: totals.values / scales

    def _sampled(self, batch: Batch, counts: Sequence[int], out: Callable[[int], Any]) -> tuple[Grid, Any]:
        """Takes samples of each parameter, side by side."""
        sizes = np.array(counts, np.int64)
        rows = batch.rows.copy()
        rows[:, 3] = np.cumsum(sizes) - sizes
        sampled = Batch(rows, batch.residuals, batch.gradients)
        grid = self.grid(sampled, "samples", lambda: (THREADS, -(-sizes // TILE), sizes, sizes))
        values = out(int(sizes.sum()))
        self._pass("looking", "samples", grid, values)
        return grid, values

    def samples(self, batch: Batch, counts: Sequence[int], readback: Readback) -> Pending[list[Floats32]]:
        slot = readback.take(sum(counts), np.float32)
        self._sampled(batch, counts, lambda _: slot.array)
        return lambda: np.split(slot.values, np.cumsum(counts)[:-1])

    def ranked_samples(
        self, batch: Batch, counts: Sequence[int], ranks: Sequence[int]
    ) -> tuple[Floats32, Flags]:
        grid, values = self._sampled(batch, counts, lambda size: self.empty(size, np.float32))
        readback = Readback(self)
        magnitudes = readback.take(2 * len(batch), np.uint32)
        given = grid.parts, values, self.constant(np.array(ranks, np.int64)), magnitudes.array
        self.launch("looking", "ranked", len(batch), _MOST_COUNTING, *given)
        readback.fetch()
        bits, broken = magnitudes.values.reshape(-1, 2).T
        return bits.copy().view(np.float32), np.asarray(broken > 0)

    # Sparse passes

    def apply_momentum(self, batch: Batch, velocities: Sequence[Tensor], momentum: float) -> Batch:
        moved = Batch.of(velocities, batch.gradients, batch.sizes)
        out = self.empty(int(batch.sizes.sum()), np.float32)
        self._pass("looking", "momentum", self._tiled(moved), float_bits(momentum), out)
        return batch.with_gradients(self.tensor(out))

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, target: Target, taus: Sequence[float]
    ) -> Pending[Selected]:
        grid, by = self._tiled(batch), np.array(taus, np.float32)
        reports = Reports(grid, target.readback)
        self._append("threshold", rule, grid, target, reports, self.constant(by))
        return lambda: reports.selected(by)

    def _append(
        self, source: str, kernel: str, grid: Grid, target: Target, reports: Reports, *arguments: Any
    ) -> None:
        """A pass whose tiles write behind those before them."""
        states = self.zeros(grid.tiles + 1, np.uint64)
        given = grid.parts, grid.owners, *arguments, *target[:2], states, *reports.arrays
        self.launch(source, kernel, grid.tiles, grid.threads, *given)

    def take_largest(self, batch: Batch, target: Target, counts: Sequence[int]) -> Pending[Selected]:
        ks, m = np.array(counts, np.int64), len(batch)
        if (ks < 0).any() or (batch.sizes >= 2**31).any():
            raise ValueError(f"k must be 0 or more and n less than 2^31, not {ks} and {batch.sizes}")
        grid = self._tiled(batch)
        reports, searches = Reports(grid, target.readback), self.zeros(4 * m, np.uint32)
        histograms, rows = self.zeros(_LEVELS * m * _BINS, np.uint32), reports.arrays[0]
        counting, most = min(grid.tiles, _MOST_COUNTING), self.constant(ks)
        for level in range(_LEVELS):
            counted = histograms[level * m * _BINS : (level + 1) * m * _BINS]
            given = grid.parts, grid.owners, grid.tiles, level, searches, counted, rows
            self.launch("topk", "count", counting, grid.threads, *given)
            self.launch("topk", "narrow_down", m, THREADS, counted, level, most, searches, rows)
        self._append("topk", "send_top", grid, target, reports, searches)
        return reports.selected

    def take_largest_of_chunks(
        self, batch: Batch, target: Target, chunk: int, keep: int
    ) -> Pending[Selected]:
        """A block of threads works on a chunk: those of less than 512 elements leave most of a GPU idle."""
        check_chunks(chunk, keep)
        # A parameter without elements has a tile that says how many words there are.
        tiles = threads_for(chunk), np.maximum(1, -(-batch.sizes // chunk))
        grid = self.grid(batch, ("chunks", chunk), lambda: tiles)
        reports = Reports(grid, target.readback)
        self._append("chunked", "chunked", grid, target, reports, chunk, keep)
        taus = np.full(len(batch), SMALLEST_TAU, np.float32)
        return lambda: reports.selected(taus)

    # Quantizing passes

    def _find_ranges(self, grid: Grid, blocks: int, readback: Readback) -> tuple[Slot, Reports]:
        """Takes up gradients, and finds the ranges of all blocks, uint32 [2] each as in blockwise.cuh."""
        ranges, reports = readback.take(2 * blocks, np.uint32), Reports(grid, readback)
        self._pass("by_range", "find_ranges", grid, ranges.array, *reports.arrays)
        return ranges, reports

    def extremes(self, batch: Batch, readback: Readback) -> tuple[Any, Pending[Extremes]]:
        grid, _ = self._blocks(batch, 0, batch.offsets(0))
        ranges, reports = self._find_ranges(grid, len(batch), readback)

        def fetched() -> Extremes:
            keys = ranges.values.reshape(-1, 2) ^ np.array([0xFFFFFFFF, 0], np.uint32)
            bits = np.where(keys >> 31, keys ^ np.uint32(1 << 31), ~keys)
            ends = bits.view(np.float32) + np.float32(0)  # -0.0 + 0.0 is 0.0
            return Extremes(ends[:, 0], ends[:, 1], np.asarray(~np.isfinite(ends).all(axis=1)))

        return (ranges, reports), fetched

    def quantize(self, form: Form, work: Quantizing) -> Pending[Kept]:
        batch, readback, symbols, bits, block, tables = work
        offsets = work.offsets
        grid, longest = self._blocks(batch, block, offsets)
        source, name, whole = _source_of(form), f"{form}_{_width(symbols)}", longest <= TILE
        written = symbols, *tables, *[0] * (2 - len(tables))
        if tables and (form == "quantile" or not whole):
            ranges, reports = self._find_ranges(grid, offsets.all_blocks, readback)
            bounds = ranges.array
        else:
            bounds, reports = 0, Reports(grid, readback)
        if form != "quantile":
            self._pass(source, f"{name}_quantize", grid, bounds, bits, 0, *written, *reports.arrays)
            if isinstance(bounds, int):
                self._add(form, grid, [(symbols, tables)], 0, 0, reports.arrays[0])
        elif whole:
            padded = 1 << (longest - 1).bit_length()
            self._pass(source, f"{name}_blocks", grid, bounds, padded, bits, *written, *reports.arrays)
        else:
            keys = self._find_means(grid, work, bounds, reports)
            self._pass(source, f"{name}_pieces", grid, keys, bits, *written, *reports.arrays)
        return reports.kept

    def _find_means(self, grid: Grid, work: Quantizing, ranges: Any, reports: Reports) -> Any:
        """Writes the tables of blocks larger than a piece; returns sorted keys, uint64 of all elements."""
        keys = self.empty(int(work.batch.sizes.sum()), np.uint64)
        self._pass("quantile", "write_keys", grid, keys)
        ordered = keys.view(torch.int64).sort().values
        offsets, sizes = work.offsets, work.batch.sizes
        lengths = np.minimum(sizes, work.block or sizes)
        tiles = _BIN_THREADS, offsets.blocks, lengths, offsets.firsts
        blocks = self.grid(work.batch, ("means", work.block), lambda: tiles)
        given = blocks.parts, blocks.owners, ordered, ranges, work.bits, *work.tables, reports.arrays[0]
        self.launch("quantile", "find_means", blocks.tiles << work.bits, _BIN_THREADS, *given)
        return ordered

    def linear_between(self, work: Quantizing, bits: Sequence[int], ranges: Any) -> Pending[Kept]:
        grid, _ = self._blocks(work.batch, 0, work.offsets)
        (extremes, reports), kept = ranges, Reports(grid, work.readback)
        last = *work.tables, reports.arrays[0], kept.arrays[1]
        first = extremes.array, 0, self.constant(np.array(bits, np.int64)), work.symbols
        self._pass("by_range", f"linear_{_width(work.symbols)}_quantize", grid, *first, *last)
        return lambda: Kept(kept.kept().residual_squares, reports.kept().nonfinite)

    # What is sent

    def add_values(
        self, form: str, sources: Sources, block: int, rows: Numbers, out: Any, starts: Numbers, divisor: int
    ) -> None:
        sizes = rows[:, 1]
        where = np.stack((out.data_ptr() + 4 * starts, starts, sizes, rows[:, 0]), axis=1)
        offsets = Offsets(rows[:, 0], sizes, rows[:, 2], rows[:, 3])
        grid, _ = self._blocks(Batch(where, (), ()), block, offsets)
        self._add(form, grid, sources, _bits_of(form, sources), divisor)

    def _add(self, form: str, grid: Grid, sources: Sources, bits: int, divisor: int, report: Any = 0) -> None:
        """Adds what symbols stand for; with a report, only where that tells of what is not finite."""
        pointers = np.zeros((len(sources), 3), np.int64)
        for row, (symbols, tables) in zip(pointers, sources, strict=True):
            row[: 1 + len(tables)] = [array.data_ptr() for array in (symbols, *tables)]
        source, kernel = _source_of(form), f"{form}_{_width(sources[0][0])}_values"
        given = self.constant(pointers), len(sources), bits, divisor > 0
        by = float_bits(divisor) if divisor > 1 else 0
        self._pass(source, kernel, grid, *given, by, report)

    def add_words(self, words: Any, ends: Numbers, rows: Numbers, taus: Floats32 | None, values: Any) -> None:
        if not (k := len(words)):
            return
        parts = self.constant(part_table(Batch(rows, (), ()), np.zeros(1, np.int64)))
        beside = values if values is not None and len(values) else 0
        kind = _TAUS if isinstance(beside, int) else _LEVELS_BESIDE
        if taus is None:
            kind = _CLEAR if values is None else _VALUES
        by = 0 if taus is None else self.constant(taus)
        given = parts, len(rows), words, k, kind, beside, by
        self.launch("words", "add_words", -(-k // THREADS), THREADS, *given)


def threads_for(length: int) -> int:
    """Threads for tiles of so many elements, 16 for a thread; larger ones are gone over several times."""
    return 32 * max(1, -(-min(length, TILE) // (_ITEMS * 32)))


def _source_of(form: str) -> str:
    return form if form == "quantile" else "by_range"


def _width(symbols: Any) -> int:
    """Bits of the integers that symbols lie in."""
    return 8 * int(symbols.dtype.itemsize)


def _bits_of(form: str, sources: Sources) -> int:
    """Bits of the symbols of `quantile`, whose tables have an entry for each."""
    if form != "quantile":
        return 0
    exponents, means = sources[0][1]
    return (len(means) // max(1, len(exponents))).bit_length() - 1


def _looked_at(gradients: Sequence[Tensor]) -> Batch:
    return Batch.of([None] * len(gradients), gradients)
