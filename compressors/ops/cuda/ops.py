"""Arrays and passes on a device. Nothing here waits, but for what `Ops` says."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...method.base import SMALLEST_TAU
from ..cpu.bitpack import symbol_type
from ..cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..interface import Addends, Ops, Ranges, Sample
from ..readback import Pending, Readback
from ..results import Batch, HalfFormat, QuantizedPass, Quantizing, Selected, Target, ThresholdRule
from . import chunked, linear, looking, minifloat, quantile, sparse_add, threshold, topk, words
from .memory import Device
from .reports import GradientType, Reports

_TYPES: dict[torch.dtype, GradientType] = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}


class CudaOps(Device, Ops):
    """See `Ops` and `Runtime`. Arrays are `DeviceArray`s."""

    on_host = False

    def _gradient(self, gradient: Tensor) -> tuple[Any, GradientType]:
        """A gradient as an array, and what its bits mean."""
        if gradient.dtype not in _TYPES:
            gradient = gradient.float()
        return self.array(gradient), _TYPES[gradient.dtype]

    def _kept(self, residual: Tensor | None) -> Any:
        return None if residual is None else self.array(residual)

    def target(self, elements: int, rule: ThresholdRule) -> Target:
        """See `Ops.target`."""
        beside = 0 if rule in WITHOUT_VALUES else elements
        return Target(self.empty(elements, np.uint32), self.empty(beside, VALUE_DTYPE[rule]))

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> list[bool]:
        """See `Ops.nonzero`."""
        readback, found = Readback(self), []
        for each in gradients:
            gradient, gradient_type = self._gradient(each)
            found.append(readback.take(1, np.int32))
            looking.find_nonzero(self, gradient, found[-1].array, gradient_type=gradient_type)
        readback.fetch()
        return [bool(slot.values[0]) for slot in found]

    def finite(self, gradients: Sequence[Tensor], returned: Readback) -> Pending[list[bool]]:
        """See `Ops.finite`."""
        reports = Reports(self, len(gradients), returned)
        for each in gradients:
            looking.count_nonfinite(self, self.array(each), reports, gradient_type="float32")
        return lambda: [not report.nonfinite for report in reports.fetched()]

    def squares(self, residual: Tensor | None, returned: Readback) -> Pending[float]:
        """See `Ops.squares`."""
        if residual is None:
            return lambda: 0.0
        slot = returned.take(1, np.float64)
        looking.add_squares(self, self.array(residual), slot.array)
        return lambda: float(slot.values[0])

    def ordered_sum_of_squares(self, gradient: Tensor, returned: Readback) -> Pending[float]:
        """See `Ops.ordered_sum_of_squares`."""
        slot = returned.take(1, np.float64)
        looking.ordered_sum_of_squares(self, self.array(gradient), slot.array)
        return lambda: float(slot.values[0])

    def samples(
        self, residuals: Sequence[Tensor | None], gradients: Sequence[Tensor], most: int
    ) -> list[Tensor]:
        """See `Ops.samples`."""
        readback, taken = Readback(self), []
        for residual, each in zip(residuals, gradients, strict=True):
            gradient, gradient_type = self._gradient(each)
            n = each.numel()
            kept = self.zeros(n, np.float32) if residual is None else self.array(residual)
            slot = readback.take(min(most, n), np.uint32)
            topk.start_sampling(self, kept, gradient, slot.array, gradient_type=gradient_type)
            taken.append(slot)
        readback.fetch()
        return [torch.from_numpy(slot.values.view(np.float32)) for slot in taken]

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
        reports = Reports(self, len(taus), returned)
        for number, (residual, gradient, options) in enumerate(self._arrays(batch)):
            threshold.threshold_pass(
                self, rule, residual, gradient, taus[number], *batch.target, reports, **options
            )
        by = np.array(taus, np.float32).tolist()
        return lambda: _selected(reports, by)

    def take_largest(self, batch: Batch, counts: Sequence[int], returned: Readback) -> Pending[Selected]:
        """See `Ops.take_largest`."""
        reports = Reports(self, len(counts), returned)
        for number, (residual, gradient, options) in enumerate(self._arrays(batch)):
            topk.topk_pass(self, residual, gradient, counts[number], *batch.target, reports, **options)
        return lambda: _selected(reports, None)

    def take_largest_of_chunks(
        self, batch: Batch, chunk: int, keep: int, returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_largest_of_chunks`."""
        reports = Reports(self, len(batch.bases), returned)
        for residual, gradient, options in self._arrays(batch):
            chunked.chunked_pass(self, residual, gradient, chunk, keep, *batch.target, reports, **options)
        by = [SMALLEST_TAU] * len(batch.bases)
        return lambda: _selected(reports, by)

    def _arrays(self, batch: Batch) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """Residual and gradient of each parameter, and what else its pass is told."""
        for residual, each, base in zip(*batch[:3], strict=True):
            gradient, gradient_type = self._gradient(each)
            yield self.array(residual), gradient, {"base": base, "gradient_type": gradient_type}

    def clear(self, named: Any, base: int, dense: Tensor) -> None:
        """See `Ops.clear`."""
        words.clear_named(self, named, base, self.array(dense))

    # Quantizing passes

    def extremes(self, given: Sequence[Addends], readback: Readback, returned: Readback) -> list[Ranges]:
        """See `Ops.extremes`."""
        found: list[Ranges] = []
        for residual, gradient in given:
            reports, slot = Reports(self, 1, returned), readback.take(2, np.uint32)
            kept, added = self._kept(residual), self.array(gradient)
            found.append(linear.extremes(self, kept, added, 0, reports, slot=slot))
        return found

    def count_samples(
        self, samples: Sequence[Sample], bits: int, ranges: Sequence[Ranges], readback: Readback
    ) -> Pending[list[NDArray[np.int64]]]:
        """See `Ops.count_samples`."""
        found = [
            self._count_sample(each, bits, own, readback) for each, own in zip(samples, ranges, strict=True)
        ]
        return lambda: [each() for each in found]

    def _count_sample(
        self, wanted: Sample, bits: int, ranges: Ranges, readback: Readback
    ) -> Pending[NDArray[np.int64]]:
        values, size = wanted
        assert isinstance(ranges, linear.Ranges)
        sample, symbols = self.empty(size, np.float32), readback.take(size, symbol_type(bits))
        looking.sample(self, self.array(values), sample)
        unread = Reports(self, 1)
        # The extremes need not come to the host for this.
        own = linear.Ranges(ranges.keys, unread.begin(), unread)
        low, step = self.empty(1, np.float32), self.empty(1, np.float32)
        linear.linear_pass(self, None, sample, bits, 0, symbols.array, low, step, unread, ranges=own)
        return lambda: np.bincount(symbols.values, minlength=1 << bits)

    def linear_pass(
        self, work: Quantizing, lows: Any, steps: Any, returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.linear_pass`."""
        reports = Reports(self, len(work.gradients), returned)
        for kept, added, dtype, symbols, at in self._each(work):
            linear.linear_pass(
                self, kept, added, work.bits, work.block, symbols, lows[at], steps[at], reports,
                gradient_type=dtype,
            )  # fmt: skip
        return lambda: _quantized(reports)

    def linear_between(
        self, work: Quantizing, bits: Sequence[int], ranges: Sequence[Ranges], lows: Any, steps: Any
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.linear_between`."""
        known = [each for each in ranges if isinstance(each, linear.Ranges)]
        each_work = zip(self._each(work), bits, known, strict=True)
        for (kept, added, dtype, symbols, at), own_bits, own in each_work:
            if not own.nonfinite:
                linear.linear_pass(
                    self, kept, added, own_bits, 0, symbols, lows[at], steps[at], own.reports,
                    ranges=own, gradient_type=dtype,
                )  # fmt: skip
        return lambda: [passed for own in known for passed in _quantized(own.reports)]

    def quantile_pass(
        self, work: Quantizing, means: Any, exponents: Any, returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.quantile_pass`."""
        reports, bits = Reports(self, len(work.gradients), returned), work.bits
        for kept, added, dtype, symbols, at in self._each(work):
            tables = means[at.start << bits : at.stop << bits], exponents[at]
            quantile.quantile_pass(
                self, kept, added, bits, work.block, symbols, *tables, reports, gradient_type=dtype
            )
        return lambda: _quantized(reports)

    def fp8_pass(self, work: Quantizing, exponents: Any, returned: Readback) -> Pending[list[QuantizedPass]]:
        """See `Ops.fp8_pass`."""
        reports = Reports(self, len(work.gradients), returned)
        for kept, added, dtype, symbols, at in self._each(work):
            arguments = (work.block, symbols, exponents[at], reports)
            minifloat.fp8_pass(self, kept, added, *arguments, gradient_type=dtype)
        return lambda: _quantized(reports)

    def half_pass(
        self, kind: HalfFormat, work: Quantizing, returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.half_pass`."""
        reports = Reports(self, len(work.gradients), returned)
        for kept, added, dtype, symbols, _ in self._each(work):
            minifloat.half_pass(self, kind, kept, added, symbols, reports, gradient_type=dtype)
        return lambda: _quantized(reports)

    def _each(self, work: Quantizing) -> Iterator[tuple[Any, Any, GradientType, Any, slice]]:
        """Residual, gradient, its type and symbols of each parameter, and where its tables stand."""
        offsets = work.offsets
        for residual, each, at, tables in zip(
            work.residuals, work.gradients, offsets.symbols, offsets.tables, strict=True
        ):
            yield self._kept(residual), *self._gradient(each), work.symbols[at], tables

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
                linear.linear_values(self, own, block, lows, steps, into, add)
            elif form == "quantile":
                exponents, means = tables
                width = int(means.size) // int(exponents.size)
                own_means = means[first * width : (first + blocks) * width]
                quantile.quantile_values(
                    self, own, block, own_means, exponents[first : first + blocks], into, add
                )
            elif form == "fp8":
                minifloat.fp8_values(self, own, block, tables[0][first : first + blocks], into, add)
            else:
                kind: HalfFormat = "bf16" if form == "bf16" else "fp16"
                minifloat.half_values(self, kind, own, into, add)

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
        begin = 0
        for number, (end, shift) in enumerate(zip(ends.tolist(), shifts.tolist(), strict=True)):
            own, beside = words[begin:end], values[begin:end]
            if taus is None:
                sparse_add.add_values(self, own, beside, shift, total)
            elif int(values.size):
                sparse_add.add_levels(self, own, beside, float(taus[number]), shift, total)
            else:
                sparse_add.add_taus(self, own, float(taus[number]), shift, total)
            begin = end

    def add_to_each(
        self, words: Any, counts: Sequence[int], firsts: Sequence[int], values: Any, dense: Sequence[Tensor]
    ) -> None:
        """See `Ops.add_to_each`."""
        begin = 0
        for count, first, out in zip(counts, firsts, dense, strict=True):
            at = slice(begin, begin + count)
            sparse_add.add_values(self, words[at], values[at], -first, self.array(out))
            begin += count


def _selected(reports: Reports, taus: list[float] | None) -> Selected:
    found = reports.fetched()
    return Selected(
        [report.sent for report in found],
        [report.residual_squares for report in found],
        [report.nonfinite for report in found],
        [float(report.tau) for report in found] if taus is None else taus,
    )


def _quantized(reports: Reports) -> list[QuantizedPass]:
    return [QuantizedPass(report.residual_squares, report.nonfinite) for report in reports.fetched()]
