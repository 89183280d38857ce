"""The passes on a device: they write the bits of those of ops/cpu. Nothing waits, but for what `Ops` says."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...method.base import SMALLEST_TAU, ThresholdRule, check_chunks
from ..cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..interface import Batch, Selected, Target
from ..readback import Pending, Readback
from .device import float_bits
from .quantizing import QuantizingOps, lay_out
from .reports import Reports

_THREADS = 256
_TILE = 4096
"""Elements that a block of threads looks at together, as in threshold.cu and topk.cu."""
_MOST_COUNTING = 1024
"""Blocks of threads that count: all that an H100 or H200 runs at once."""
_LEVELS = 3
_BINS = 2048


class CudaOps(QuantizingOps):
    """See `Ops` and `Device`. Arrays are `DeviceArray`s.

    Sparse passes append to one another: how many words there are is in a pass's report, and the next one
    appends behind them.
    """

    on_host = False

    def target(self, elements: int, rule: ThresholdRule) -> Target:
        beside = 0 if rule in WITHOUT_VALUES else elements
        return Target(self.empty(elements, np.uint32), self.empty(beside, VALUE_DTYPE[rule]))

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> list[bool]:
        found = torch.stack([(each != 0).any() for each in gradients]) if gradients else torch.empty(0)
        answers: list[bool] = found.tolist()
        return answers

    def _later(self, number: Tensor, returned: Readback) -> Pending[float]:
        """A number that is fetched with others."""
        slot = returned.take(1, np.float64)
        slot.array.memory.view(torch.float64).copy_(number.reshape(1))
        return lambda: float(slot.values[0])

    def finite(self, gradients: Sequence[Tensor], returned: Readback) -> Pending[list[bool]]:
        found = [self._later(torch.isfinite(each).all(), returned) for each in gradients]
        return lambda: [each() > 0 for each in found]

    def squares(self, residual: Tensor | None, returned: Readback) -> Pending[float]:
        if residual is None:
            return lambda: 0.0
        return self._later(torch.linalg.vector_norm(residual, dtype=torch.float64).square(), returned)

    # Sparse passes

    def apply_momentum(
        self, velocities: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float
    ) -> list[Tensor]:
        advanced = []
        for velocity, gradient in zip(velocities, gradients, strict=True):
            advanced.append(velocity * momentum + gradient.float())
            velocity.copy_(torch.where(torch.isfinite(advanced[-1]), advanced[-1], velocity))
        return advanced

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, taus: Sequence[float], returned: Readback
    ) -> Pending[Selected]:
        arrays, reports = list(self._arrays(batch)), Reports(len(taus), returned)
        tiles = np.cumsum([0, *(_tiles(n) for _, _, n, _ in arrays)])
        rows = [
            (residual.pointer, gradient.pointer, n, base, float_bits(tau), first)
            for (residual, gradient, n, base), tau, first in zip(
                arrays, taus, tiles[:-1].tolist(), strict=True
            )
        ]
        (parts,) = self.place_all([np.array(rows, np.int64)])
        last = *batch.target, self.zeros(int(tiles[-1]) + 1, np.uint64), reports.begin(len(rows))
        self.launch("threshold", rule, int(tiles[-1]), _THREADS, parts, len(rows), *last)
        by = np.array(taus, np.float32).tolist()
        return lambda: _selected(reports, by)

    def take_largest(self, batch: Batch, counts: Sequence[int], returned: Readback) -> Pending[Selected]:
        """See `Ops.take_largest`.

        Raises:
            ValueError: a count is negative, or a parameter is too large.
        """
        reports = Reports(len(counts), returned)
        for k, (residual, gradient, n, base) in zip(counts, self._arrays(batch), strict=True):
            if k < 0 or n >= 2**31:
                raise ValueError(f"k must be 0 or more and n less than 2^31, not {k} and {n}")
            report, tiles = reports.begin(), _tiles(n)
            counting = min(tiles, _MOST_COUNTING)
            histograms, search = self.zeros(_LEVELS * _BINS, np.uint32), self.zeros(2, np.uint32)
            for level in range(_LEVELS):
                histogram = histograms[level * _BINS : (level + 1) * _BINS]
                if level == 0:
                    given = residual, gradient, n, tiles, histogram, report
                    self.launch("topk", "take_up", counting, _THREADS, *given)
                else:
                    given = residual, n, tiles, level, search, histogram
                    self.launch("topk", "count", counting, _THREADS, *given)
                self.launch("topk", "narrow_down", 1, _THREADS, histogram, level, k, search, report)
            last = search, *batch.target, self.zeros(tiles + 1, np.uint64), report
            self.launch("topk", "send_top", tiles, _THREADS, residual, n, base, *last)
        return lambda: _selected(reports, None)

    def take_largest_of_chunks(
        self, batch: Batch, chunk: int, keep: int, returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_largest_of_chunks`.

        A block of threads works on a chunk: chunks of less than 512 elements leave most of a GPU idle.

        Raises:
            ValueError: chunk or keep is out of its range.
        """
        check_chunks(chunk, keep)
        reports, threads = Reports(len(batch.bases), returned), lay_out(chunk, chunk).threads
        for residual, gradient, n, base in self._arrays(batch):
            chunks = max(1, -(-n // chunk))  # one without elements hands on how many words there are
            last = *batch.target, self.zeros(chunks + 1, np.uint64), reports.begin()
            given = residual, gradient, n, chunk, keep, base
            self.launch("chunked", "chunked", chunks, threads, *given, *last)
        by = [SMALLEST_TAU] * len(batch.bases)
        return lambda: _selected(reports, by)

    def _arrays(self, batch: Batch) -> Iterator[tuple[Any, Any, int, int]]:
        """Residual, gradient, elements and base of each parameter."""
        for residual, gradient, base in zip(*batch[:3], strict=True):
            yield self.array(residual), self.array(gradient.float()), gradient.numel(), base

    def clear(self, words: Any, base: int, dense: Tensor) -> None:
        dense.index_fill_(0, (_signed(words) >> 1) - base, 0)

    # What is sent

    def add_words(
        self,
        words: Any,
        ends: NDArray[np.int64],
        shifts: NDArray[np.int64],
        taus: NDArray[np.float32] | None,
        values: Any,
        total: Any,
    ) -> None:
        if not words.size:
            return
        dense, own = self.tensor(total), _signed(words)
        beside = [] if taus is None else [taus]
        counts, *rows = self.place_all([np.diff(ends, prepend=0), shifts, *beside])
        repeats = counts.memory.view(torch.int64)

        def of_each(row: Tensor) -> Tensor:
            return torch.repeat_interleave(row, repeats, output_size=int(words.size))

        places = (own >> 1) + of_each(rows[0].memory.view(torch.int64))
        if taus is None:
            amounts = self.tensor(values)
        else:
            by = of_each(self.tensor(rows[1]))
            amounts = self.tensor(values).float() * by if values.size else by
            amounts = torch.where((own & 1).bool(), -amounts, amounts)
        # `index_add_` is atomic there, and takes 1e-40 for 0.
        dense.index_copy_(0, places, dense.index_select(0, places) + amounts)


def _tiles(n: int) -> int:
    return (n + 3 + _TILE - 1) // _TILE  # a tile may begin up to three elements before the first


def _signed(words: Any) -> Tensor:
    """Words as int64 [k]."""
    signed: Tensor = words.memory.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    return signed


def _selected(reports: Reports, taus: list[float] | None) -> Selected:
    found = reports.fetched()
    broken, by = (found["nonfinite"] > 0).tolist(), found["tau"].tolist() if taus is None else taus
    return Selected(found["sent"].tolist(), found["squares"].tolist(), broken, by)
