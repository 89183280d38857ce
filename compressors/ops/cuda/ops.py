"""Arrays and passes on a device. Nothing here waits, but for what `Ops` says."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...config.base import SMALLEST_TAU
from ..cpu.bitpack import symbol_type
from ..cpu.threshold import VALUE_DTYPE, WITHOUT_VALUES
from ..interface import Addends, Ops, Ranges, Sample
from ..results import Batch, HalfFormat, QuantizedPass, Quantizing, Taken, Target, ThresholdRule
from ..returns import Pending, Returns
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
        returns, found = Returns(self), []
        for each in gradients:
            gradient, gradient_type = self._gradient(each)
            found.append(returns.take(1, np.int32))
            looking.find_nonzero(self, gradient, found[-1].array, gradient_type=gradient_type)
        returns.fetch()
        return [bool(slot.values[0]) for slot in found]

    def finite(self, gradients: Sequence[Tensor], returns: Returns) -> Pending[list[bool]]:
        """See `Ops.finite`."""
        reports = Reports(self, len(gradients), returns)
        for each in gradients:
            looking.count_nonfinite(self, self.array(each), reports, gradient_type="float32")
        return lambda: [not report.nonfinite for report in reports.fetched()]

    def squares(self, residual: Tensor | None, returns: Returns) -> Pending[float]:
        """See `Ops.squares`."""
        if residual is None:
            return lambda: 0.0
        slot = returns.take(1, np.float64)
        looking.add_squares(self, self.array(residual), slot.array)
        return lambda: float(slot.values[0])

    def ordered_sum_of_squares(self, gradient: Tensor, returns: Returns) -> Pending[float]:
        """See `Ops.ordered_sum_of_squares`."""
        slot = returns.take(1, np.float64)
        looking.ordered_sum_of_squares(self, self.array(gradient), slot.array)
        return lambda: float(slot.values[0])

    def samples(
        self, residuals: Sequence[Tensor | None], gradients: Sequence[Tensor], most: int
    ) -> list[Tensor]:
        """See `Ops.samples`."""
        returns, taken = Returns(self), []
        for residual, each in zip(residuals, gradients, strict=True):
            gradient, gradient_type = self._gradient(each)
            n = each.numel()
            kept = self.zeros(n, np.float32) if residual is None else self.array(residual)
            slot = returns.take(min(most, n), np.uint32)
            topk.start_sampling(self, kept, gradient, slot.array, gradient_type=gradient_type)
            taken.append(slot)
        returns.fetch()
        return [torch.from_numpy(slot.values.view(np.float32)) for slot in taken]

    # Sparse passes

    def advance(
        self, velocities: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float
    ) -> list[Tensor]:
        """See `Ops.advance`."""
        advanced = []
        for velocity, gradient in zip(velocities, gradients, strict=True):
            advanced.append(velocity * momentum + gradient.float())
            velocity.copy_(torch.where(torch.isfinite(advanced[-1]), advanced[-1], velocity))
        return advanced

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, taus: Sequence[float], returns: Returns
    ) -> Pending[Taken]:
        """See `Ops.take_by_threshold`."""
        reports = Reports(self, len(taus), returns)
        for number, (residual, gradient, options) in enumerate(self._arrays(batch)):
            threshold.threshold_pass(
                self, rule, residual, gradient, taus[number], *batch.target, reports, **options
            )
        by = np.array(taus, np.float32).tolist()
        return lambda: _taken(reports, by)

    def take_largest(self, batch: Batch, counts: Sequence[int], returns: Returns) -> Pending[Taken]:
        """See `Ops.take_largest`."""
        reports = Reports(self, len(counts), returns)
        for number, (residual, gradient, options) in enumerate(self._arrays(batch)):
            topk.topk_pass(self, residual, gradient, counts[number], *batch.target, reports, **options)
        return lambda: _taken(reports, None)

    def take_largest_of_chunks(self, batch: Batch, chunk: int, keep: int, returns: Returns) -> Pending[Taken]:
        """See `Ops.take_largest_of_chunks`."""
        reports = Reports(self, len(batch.bases), returns)
        for residual, gradient, options in self._arrays(batch):
            chunked.chunked_pass(self, residual, gradient, chunk, keep, *batch.target, reports, **options)
        by = [SMALLEST_TAU] * len(batch.bases)
        return lambda: _taken(reports, by)

    def _arrays(self, batch: Batch) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        """Residual and gradient of each parameter, and what else its pass is told."""
        for residual, each, base in zip(*batch[:3], strict=True):
            gradient, gradient_type = self._gradient(each)
            yield self.array(residual), gradient, {"base": base, "gradient_type": gradient_type}

    def clear(self, named: Any, base: int, dense: Tensor) -> None:
        """See `Ops.clear`."""
        words.clear_named(self, named, base, self.array(dense))

    # Quantizing passes

    def extremes(self, given: Sequence[Addends], looks: Returns, returns: Returns) -> list[Ranges]:
        """See `Ops.extremes`."""
        found: list[Ranges] = []
        for residual, gradient in given:
            reports, slot = Reports(self, 1, returns), looks.take(2, np.uint32)
            kept, added = self._kept(residual), self.array(gradient)
            found.append(linear.extremes(self, kept, added, 0, reports, slot=slot))
        return found

    def count_samples(
        self, samples: Sequence[Sample], bits: int, ranges: Sequence[Ranges], looks: Returns
    ) -> Pending[list[NDArray[np.int64]]]:
        """See `Ops.count_samples`."""
        found = [
            self._count_sample(each, bits, own, looks) for each, own in zip(samples, ranges, strict=True)
        ]
        return lambda: [each() for each in found]

    def _count_sample(
        self, wanted: Sample, bits: int, ranges: Ranges, looks: Returns
    ) -> Pending[NDArray[np.int64]]:
        values, size = wanted
        assert isinstance(ranges, linear.Ranges)
        sample, symbols = self.empty(size, np.float32), looks.take(size, symbol_type(bits))
        looking.sample(self, self.array(values), sample)
        unread = Reports(self, 1)
        # The extremes need not come to the host for this.
        own = linear.Ranges(ranges.keys, unread.begin(), unread)
        low, step = self.empty(1, np.float32), self.empty(1, np.float32)
        linear.linear_pass(self, None, sample, bits, 0, symbols.array, low, step, unread, ranges=own)
        return lambda: np.bincount(symbols.values, minlength=1 << bits)

    def linear_pass(
        self, work: Quantizing, lows: Any, steps: Any, returns: Returns, ranges: Sequence[Ranges] = ()
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.linear_pass`."""
        known = [each for each in ranges if isinstance(each, linear.Ranges)]
        reports = [each.reports for each in known] or [Reports(self, len(work.gradients), returns)]
        for number, (kept, added, dtype, symbols, at) in enumerate(self._each(work)):
            linear.linear_pass(
                self, kept, added, work.bits, work.block, symbols, lows[at], steps[at],
                reports[number if known else 0], ranges=known[number] if known else None,
                gradient_type=dtype,
            )  # fmt: skip
        return lambda: [passed for each in reports for passed in _quantized(each)]

    def quantile_pass(
        self, work: Quantizing, means: Any, exponents: Any, returns: Returns
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.quantile_pass`."""
        reports, bits = Reports(self, len(work.gradients), returns), work.bits
        for kept, added, dtype, symbols, at in self._each(work):
            tables = means[at.start << bits : at.stop << bits], exponents[at]
            quantile.quantile_pass(
                self, kept, added, bits, work.block, symbols, *tables, reports, gradient_type=dtype
            )
        return lambda: _quantized(reports)

    def fp8_pass(self, work: Quantizing, exponents: Any, returns: Returns) -> Pending[list[QuantizedPass]]:
        """See `Ops.fp8_pass`."""
        reports = Reports(self, len(work.gradients), returns)
        for kept, added, dtype, symbols, at in self._each(work):
            arguments = (work.block, symbols, exponents[at], reports)
            minifloat.fp8_pass(self, kept, added, *arguments, gradient_type=dtype)
        return lambda: _quantized(reports)

    def half_pass(self, kind: HalfFormat, work: Quantizing, returns: Returns) -> Pending[list[QuantizedPass]]:
        """See `Ops.half_pass`."""
        reports = Reports(self, len(work.gradients), returns)
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

    # Launched as they are

    drop_signs = words.drop_signs
    linear_values = linear.linear_values
    quantile_values = quantile.quantile_values
    fp8_values = minifloat.fp8_values
    half_values = minifloat.half_values
    add_taus = sparse_add.add_taus
    add_levels = sparse_add.add_levels
    add_values = sparse_add.add_values

    def add_to_each(self, words: Any, counts: Sequence[int], values: Any, dense: Sequence[Tensor]) -> None:
        """See `Ops.add_to_each`."""
        begin = 0
        for count, out in zip(counts, dense, strict=True):
            at = slice(begin, begin + count)
            self.add_values(words[at], values[at], self.array(out))
            begin += count


def _taken(reports: Reports, taus: list[float] | None) -> Taken:
    found = reports.fetched()
    return Taken(
        [report.sent for report in found],
        [report.residual_squares for report in found],
        [report.nonfinite for report in found],
        [float(report.tau) for report in found] if taus is None else taus,
    )


def _quantized(reports: Reports) -> list[QuantizedPass]:
    return [QuantizedPass(report.residual_squares, report.nonfinite) for report in reports.fetched()]
