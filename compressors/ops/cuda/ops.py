"""The passes on a device: they write the bits of those of ops/cpu. Nothing waits, but for what `Ops` says.

A pass over a batch is a fixed number of launches. What they go by is laid out on the device once, and again
when an address, a size or a threshold is another.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...method.base import SMALLEST_TAU, ThresholdRule, check_chunks
from ..cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..interface import Batch, Flags, Floats64, Selected, Target, scales_of
from ..readback import Pending, Readback
from ..segments import Numbers
from .device import float_bits
from .grids import THREADS, TILE, Grid, Reports, part_table, sums_by_owner
from .quantizing import QuantizingOps, threads_for

_MOST_COUNTING = 1024
"""Blocks of threads that count: all that an H100 or H200 runs at once."""
_LEVELS, _BINS = 3, 2048
_TAUS, _LEVELS_BESIDE, _VALUES, _CLEAR = range(4)
"""What words stand for, in words.cu."""


class CudaOps(QuantizingOps):
    """See `Ops` and `Device`. Arrays are `DeviceArray`s."""

    on_host = False

    def target(self, elements: int, rule: ThresholdRule) -> Target:
        beside = 0 if rule in WITHOUT_VALUES else elements
        return Target(self.empty(elements, np.uint32), self.empty(beside, VALUE_DTYPE[rule]))

    def _tiled(self, batch: Batch) -> Grid:
        """Tiles of TILE elements, which may begin up to three elements before a parameter's first."""
        return self.grid(batch, "tiles", lambda: (THREADS, (batch.sizes + 3 + TILE - 1) // TILE))

    def _over(self, kernel: str, grid: Grid, *arguments: Any) -> None:
        self.launch("looking", kernel, grid.tiles, grid.threads, *grid.pair, *arguments)

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> Flags:
        readback = Readback(self)
        found = readback.take(len(gradients), np.uint32)
        self._over("nonzero", self._tiled(_looked_at(gradients)), found.array)
        readback.fetch()
        return np.asarray(found.values > 0)

    def gather(self, gradients: Sequence[Tensor], readback: Readback) -> tuple[Any, Pending[Flags]]:
        batch, broken = _looked_at(gradients), readback.take(len(gradients), np.uint32)
        out = self.empty(int(batch.sizes.sum()), np.float32)
        self._over("gather", self._tiled(batch), out, broken.array)
        return out, lambda: np.asarray(broken.values > 0)

    def squares(self, tensors: Sequence[Tensor | None], readback: Readback) -> Pending[Floats64]:
        numbers = [number for number, tensor in enumerate(tensors) if tensor is not None]
        kept = [tensor for tensor in tensors if tensor is not None]
        grid = self._tiled(Batch.of(kept, kept))
        sums, found = readback.take(grid.tiles, np.float64), np.zeros(len(tensors))
        self._over("squares", grid, sums.array)

        def fetched() -> Floats64:
            found[numbers] = sums_by_owner(grid, sums.values)
            return found

        return fetched

    def exact_squares(self, batch: Batch, readback: Readback) -> Pending[Floats64]:
        grid, first = self._tiled(batch), Readback(self)
        largest = first.take(len(batch), np.uint32)
        self._over("largest", grid, largest.array)
        first.fetch()
        scales = scales_of(largest.values.view(np.float32), batch.sizes)
        totals = readback.take(len(batch), np.int64)
        self._over("exact_squares", grid, *self.place_all([scales]), totals.array)
        return lambda: totals.values / scales

    def _sampled(self, batch: Batch, counts: Sequence[int], out: Callable[[int], Any]) -> tuple[Grid, Any]:
        """Takes samples of each parameter, side by side."""
        sizes = np.array(counts, np.int64)
        rows = batch.rows.copy()
        rows[:, 3] = np.cumsum(sizes) - sizes
        sampled = Batch(rows, batch.residuals, batch.gradients)
        grid = self.grid(sampled, "samples", lambda: (THREADS, -(-sizes // TILE), sizes, sizes))
        values = out(int(sizes.sum()))
        self._over("samples", grid, values)
        return grid, values

    def samples(
        self, batch: Batch, counts: Sequence[int], readback: Readback
    ) -> Pending[list[NDArray[np.float32]]]:
        slot = readback.take(sum(counts), np.float32)
        self._sampled(batch, counts, lambda _: slot.array)
        return lambda: np.split(slot.values, np.cumsum(counts)[:-1])

    def ranked_samples(
        self, batch: Batch, counts: Sequence[int], ranks: Sequence[int]
    ) -> tuple[NDArray[np.float32], Flags]:
        grid, values = self._sampled(batch, counts, lambda size: self.empty(size, np.float32))
        readback = Readback(self)
        found = readback.take(2 * len(batch), np.uint32)
        given = grid.parts, values, self.constant(np.array(ranks, np.int64)), found.array
        self.launch("looking", "ranked", len(batch), _MOST_COUNTING, *given)
        readback.fetch()
        bits, broken = found.values.reshape(-1, 2).T
        return bits.copy().view(np.float32), np.asarray(broken > 0)

    # Sparse passes

    def apply_momentum(self, batch: Batch, velocities: Sequence[Tensor], momentum: float) -> Batch:
        moved = Batch.of(velocities, batch.gradients, batch.sizes)
        out = self.empty(int(batch.sizes.sum()), np.float32)
        self._over("momentum", self._tiled(moved), float_bits(momentum), out)
        return batch.with_gradients(self.tensor(out))

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, target: Target, taus: Sequence[float], readback: Readback
    ) -> Pending[Selected]:
        grid, by = self._tiled(batch), np.array(taus, np.float32)
        reports = Reports(grid, readback)
        self._append("threshold", rule, grid, target, reports, self.constant(by))
        return lambda: Selected(reports.fetched[:, 0], reports.squares, reports.nonfinite, by)

    def _append(
        self, source: str, kernel: str, grid: Grid, target: Target, reports: Reports, *arguments: Any
    ) -> None:
        """A pass whose tiles write behind those before them."""
        states = self.zeros(grid.tiles + 1, np.uint64)
        given = *grid.pair, *arguments, *target, states, *reports.arrays
        self.launch(source, kernel, grid.tiles, grid.threads, *given)

    def take_largest(
        self, batch: Batch, target: Target, counts: Sequence[int], readback: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_largest`.

        Raises:
            ValueError: a count is negative, or a parameter is too large.
        """
        ks, m = np.array(counts, np.int64), len(batch)
        if (ks < 0).any() or (batch.sizes >= 2**31).any():
            raise ValueError(f"k must be 0 or more and n less than 2^31, not {ks} and {batch.sizes}")
        grid = self._tiled(batch)
        reports, searches = Reports(grid, readback), self.zeros(4 * m, np.uint32)
        histograms, rows = self.zeros(_LEVELS * m * _BINS, np.uint32), reports.arrays[0]
        for level in range(_LEVELS):
            counted = histograms[level * m * _BINS : (level + 1) * m * _BINS]
            counting = min(grid.tiles, _MOST_COUNTING)
            given = *grid.pair, grid.tiles, level, searches, counted, rows
            self.launch("topk", "count", counting, grid.threads, *given)
            self.launch("topk", "narrow_down", m, THREADS, counted, level, self.constant(ks), searches, rows)
        self._append("topk", "send_top", grid, target, reports, searches)
        return lambda: Selected(reports.fetched[:, 0], reports.squares, reports.nonfinite, reports.taus)

    def take_largest_of_chunks(
        self, batch: Batch, target: Target, chunk: int, keep: int, readback: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_largest_of_chunks`.

        A block of threads works on a chunk: chunks of less than 512 elements leave most of a GPU idle.

        Raises:
            ValueError: chunk or keep is out of its range.
        """
        check_chunks(chunk, keep)
        # A parameter without elements has a tile that says how many words there are.
        tiles = threads_for(chunk), np.maximum(1, -(-batch.sizes // chunk))
        grid = self.grid(batch, ("chunks", chunk), lambda: tiles)
        reports = Reports(grid, readback)
        self._append("chunked", "chunked", grid, target, reports, chunk, keep)
        taus = np.full(len(batch), SMALLEST_TAU, np.float32)
        return lambda: Selected(reports.fetched[:, 0], reports.squares, reports.nonfinite, taus)

    # What is sent

    def add_words(
        self, words: Any, ends: Numbers, rows: Numbers, taus: NDArray[np.float32] | None, values: Any
    ) -> None:
        k = int(words.size)
        if not k:
            return
        parts = self.constant(part_table(Batch(rows, (), ()), np.zeros(1, np.int64)))
        kind = (
            _CLEAR
            if values is None
            else _VALUES
            if taus is None
            else _LEVELS_BESIDE
            if values.size
            else _TAUS
        )
        beside = 0 if values is None or not values.size else values
        by = 0 if taus is None else self.constant(taus)
        given = parts, len(rows), words, k, kind, beside, by
        self.launch("words", "add_words", -(-k // THREADS), THREADS, *given)


def _looked_at(gradients: Sequence[Tensor]) -> Batch:
    return Batch.of([None] * len(gradients), gradients)
