"""Arrays and passes on a device. Nothing here waits, but for what `Ops` says."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...method.base import SMALLEST_TAU, ThresholdRule
from ..cpu.bitpack import symbol_type
from ..cpu.looking import TILE, stratified_positions
from ..cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..interface import Addends, Ops, Ranges, Sample
from ..readback import Pending, Readback
from ..results import Batch, HalfFormat, QuantizedPass, Quantizing, Selected, Target
from . import quantizing, sparse
from .device import Device
from .reports import Reports

_THREADS = 256


@lru_cache(256)  # samples are taken of the same parameters again and again
def _places(n: int, m: int, device: torch.device) -> Tensor:
    return torch.from_numpy(stratified_positions(n, m)).to(device)


class CudaOps(Device, Ops):
    """See `Ops` and `Device`. Arrays are `DeviceArray`s."""

    on_host = False

    def _kept(self, residual: Tensor | None) -> Any:
        return None if residual is None else self.array(residual)

    def target(self, elements: int, rule: ThresholdRule) -> Target:
        """See `Ops.target`."""
        beside = 0 if rule in WITHOUT_VALUES else elements
        return Target(self.empty(elements, np.uint32), self.empty(beside, VALUE_DTYPE[rule]))

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> list[bool]:
        """See `Ops.nonzero`."""
        found = torch.stack([(each != 0).any() for each in gradients]) if gradients else torch.empty(0)
        answers: list[bool] = found.tolist()
        return answers

    def _later(self, number: Tensor, returned: Readback) -> Pending[float]:
        """A number that is fetched with others."""
        slot = returned.take(1, np.float64)
        slot.array.memory.view(torch.float64).copy_(number.reshape(1))
        return lambda: float(slot.values[0])

    def finite(self, gradients: Sequence[Tensor], returned: Readback) -> Pending[list[bool]]:
        """See `Ops.finite`."""
        found = [self._later(torch.isfinite(each).all(), returned) for each in gradients]
        return lambda: [each() > 0 for each in found]

    def squares(self, residual: Tensor | None, returned: Readback) -> Pending[float]:
        """See `Ops.squares`."""
        if residual is None:
            return lambda: 0.0
        return self._later(torch.linalg.vector_norm(residual, dtype=torch.float64).square(), returned)

    def ordered_sum_of_squares(self, gradient: Tensor, returned: Readback) -> Pending[float]:
        """See `Ops.ordered_sum_of_squares`."""
        slot = returned.take(1, np.float64)
        kernel, values, n = "sum_squares", self.array(gradient), gradient.numel()
        while n:
            tiles = -(-n // TILE)
            sums = slot.array if tiles == 1 else self.empty(tiles, np.float64)
            self.launch("looking", kernel, tiles, _THREADS, values, n, sums)
            kernel, values, n = "sum_sums", sums, tiles if tiles > 1 else 0
        return lambda: float(slot.values[0])

    def samples(
        self, residuals: Sequence[Tensor | None], gradients: Sequence[Tensor], most: int
    ) -> list[Tensor]:
        """See `Ops.samples`."""
        if not gradients:
            return []  # without waiting
        taken = []
        for residual, gradient in zip(residuals, gradients, strict=True):
            places = _places(gradient.numel(), min(most, gradient.numel()), self.device)
            sample = gradient[places].float()
            taken.append((sample if residual is None else residual[places] + sample).abs())
        found = self.fetch_all([self.array(each) for each in taken])
        return [torch.from_numpy(each) for each in found]

    # Sparse passes

    def apply_momentum(
        self, velocities: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float
    ) -> list[Tensor]:
        """See `Ops.apply_momentum`."""
        advanced = []
        for velocity, gradient in zip(velocities, gradients, strict=True):
            advanced.append(velocity * momentum + gradient.float())
            velocity.copy_(torch.where(torch.isfinite(advanced[-1]), advanced[-1], velocity))
        return advanced

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, taus: Sequence[float], returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_by_threshold`."""
        reports = Reports(len(taus), returned)
        for tau, (residual, gradient, base) in zip(taus, self._arrays(batch), strict=True):
            sparse.threshold_pass(self, rule, residual, gradient, tau, base, *batch.target, reports)
        by = np.array(taus, np.float32).tolist()
        return lambda: _selected(reports, by)

    def take_largest(self, batch: Batch, counts: Sequence[int], returned: Readback) -> Pending[Selected]:
        """See `Ops.take_largest`."""
        reports = Reports(len(counts), returned)
        for k, (residual, gradient, base) in zip(counts, self._arrays(batch), strict=True):
            sparse.topk_pass(self, residual, gradient, k, base, *batch.target, reports)
        return lambda: _selected(reports, None)

    def take_largest_of_chunks(
        self, batch: Batch, chunk: int, keep: int, returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_largest_of_chunks`."""
        reports = Reports(len(batch.bases), returned)
        for residual, gradient, base in self._arrays(batch):
            sparse.chunked_pass(self, residual, gradient, chunk, keep, base, *batch.target, reports)
        by = [SMALLEST_TAU] * len(batch.bases)
        return lambda: _selected(reports, by)

    def _arrays(self, batch: Batch) -> Iterator[tuple[Any, Any, int]]:
        """Residual, gradient and base of each parameter."""
        for residual, gradient, base in zip(*batch[:3], strict=True):
            yield self.array(residual), self.array(gradient.float()), base

    def clear(self, words: Any, base: int, dense: Tensor) -> None:
        """See `Ops.clear`."""
        sparse.clear(words, base, dense)

    # Quantizing passes

    def extremes(self, given: Sequence[Addends], readback: Readback, returned: Readback) -> list[Ranges]:
        """See `Ops.extremes`."""
        found: list[Ranges] = []
        for residual, gradient in given:
            reports, slot = Reports(1, returned), readback.take(2, np.uint32)
            kept, added = self._kept(residual), self.array(gradient)
            found.append(quantizing.extremes(self, kept, added, 0, reports, slot))
        return found

    def count_samples(
        self, samples: Sequence[Sample], bits: int, ranges: Sequence[Ranges], readback: Readback
    ) -> Pending[list[NDArray[np.int64]]]:
        """See `Ops.count_samples`."""
        taken = []
        for (values, size), own in zip(samples, _known(ranges), strict=True):
            sample = self.array(values[_places(values.numel(), size, self.device)])
            slot, unread = readback.take(size, symbol_type(bits)), Reports(1, readback)
            # The extremes need not come to the host for this.
            there = quantizing.Ranges(own.keys, unread.begin(), unread)
            low, step = self.empty(1, np.float32), self.empty(1, np.float32)
            quantizing.linear_pass(self, None, sample, bits, 0, slot.array, low, step, unread, there)
            taken.append(slot)
        return lambda: [np.bincount(slot.values, minlength=1 << bits) for slot in taken]

    def linear_pass(
        self, work: Quantizing, lows: Any, steps: Any, returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.linear_pass`."""
        reports = Reports(len(work.gradients), returned)
        for kept, added, symbols, at in self._each(work):
            tables = lows[at], steps[at]
            quantizing.linear_pass(self, kept, added, work.bits, work.block, symbols, *tables, reports)
        return lambda: _quantized(reports)

    def linear_between(
        self, work: Quantizing, bits: Sequence[int], ranges: Sequence[Ranges], lows: Any, steps: Any
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.linear_between`."""
        known = _known(ranges)
        for (kept, added, symbols, at), width, own in zip(self._each(work), bits, known, strict=True):
            if not own.nonfinite:
                tables = lows[at], steps[at]
                quantizing.linear_pass(self, kept, added, width, 0, symbols, *tables, own.reports, own)
        return lambda: [passed for own in known for passed in _quantized(own.reports)]

    def quantile_pass(
        self, work: Quantizing, means: Any, exponents: Any, returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.quantile_pass`."""
        reports, bits = Reports(len(work.gradients), returned), work.bits
        for kept, added, symbols, at in self._each(work):
            tables = means[at.start << bits : at.stop << bits], exponents[at]
            quantizing.quantile_pass(self, kept, added, bits, work.block, symbols, *tables, reports)
        return lambda: _quantized(reports)

    def fp8_pass(self, work: Quantizing, exponents: Any, returned: Readback) -> Pending[list[QuantizedPass]]:
        """See `Ops.fp8_pass`."""
        reports = Reports(len(work.gradients), returned)
        for kept, added, symbols, at in self._each(work):
            quantizing.fp8_pass(self, kept, added, work.block, symbols, exponents[at], reports)
        return lambda: _quantized(reports)

    def half_pass(
        self, kind: HalfFormat, work: Quantizing, returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.half_pass`."""
        reports = Reports(len(work.gradients), returned)
        for kept, added, symbols, _ in self._each(work):
            quantizing.half_pass(self, kind, kept, added, symbols, reports)
        return lambda: _quantized(reports)

    def _each(self, work: Quantizing) -> Iterator[tuple[Any, Any, Any, slice]]:
        """Residual, gradient and symbols of each parameter, and where its tables stand."""
        offsets = work.offsets
        for residual, gradient, at, tables in zip(
            work.residuals, work.gradients, offsets.symbols, offsets.tables, strict=True
        ):
            yield self._kept(residual), self.array(gradient.float()), work.symbols[at], tables

    # What is sent

    def write_values(
        self,
        form: str,
        symbols: Any,
        block: int,
        tables: tuple[Any, ...],
        rows: NDArray[np.int64],
        out: Any,
        starts: NDArray[np.int64],
        add: bool,
    ) -> None:
        """See `Ops.write_values`."""
        for (begin, n, first, blocks), start in zip(rows.tolist(), starts.tolist(), strict=True):
            own, into = symbols[begin : begin + n], out[start : start + n]
            if not n:
                continue
            if form == "f32":
                there = self.tensor(into)
                there.add_(self.tensor(own)) if add else there.copy_(self.tensor(own))
            elif form == "linear":
                lows, steps = (table[first : first + blocks] for table in tables)
                quantizing.linear_values(self, own, block, lows, steps, into, add)
            elif form == "quantile":
                exponents, means = tables
                width = int(means.size) // int(exponents.size)
                own_means = means[first * width : (first + blocks) * width]
                quantizing.quantile_values(
                    self, own, block, own_means, exponents[first : first + blocks], into, add
                )
            elif form == "fp8":
                quantizing.fp8_values(self, own, block, tables[0][first : first + blocks], into, add)
            else:
                kind: HalfFormat = "bf16" if form == "bf16" else "fp16"
                quantizing.half_values(self, kind, own, into, add)

    def add_words(
        self,
        words: Any,
        ends: NDArray[np.int64],
        shifts: NDArray[np.int64],
        taus: NDArray[np.float32] | None,
        values: Any,
        total: Any,
    ) -> None:
        """See `Ops.add_words`."""
        begin, dense = 0, self.tensor(total)
        for number, (end, shift) in enumerate(zip(ends.tolist(), shifts.tolist(), strict=True)):
            own, tau = words[begin:end], None if taus is None else float(taus[number])
            sparse.add_words(own, sparse.amounts_of(self, own, values[begin:end], tau), shift, dense)
            begin = end

    def add_to_each(
        self, words: Any, counts: Sequence[int], firsts: Sequence[int], values: Any, dense: Sequence[Tensor]
    ) -> None:
        """See `Ops.add_to_each`."""
        begin = 0
        for count, first, out in zip(counts, firsts, dense, strict=True):
            at = slice(begin, begin + count)
            sparse.add_words(words[at], self.tensor(values[at]), -first, out)
            begin += count


def _known(ranges: Sequence[Ranges]) -> list[quantizing.Ranges]:
    """The ranges, which this device has made."""
    return [each for each in ranges if isinstance(each, quantizing.Ranges)]


def _selected(reports: Reports, taus: list[float] | None) -> Selected:
    found = reports.fetched()
    return Selected(
        [report.sent for report in found],
        [report.squares for report in found],
        [report.nonfinite for report in found],
        [report.tau for report in found] if taus is None else taus,
    )


def _quantized(reports: Reports) -> list[QuantizedPass]:
    return [QuantizedPass(report.squares, report.nonfinite) for report in reports.fetched()]
