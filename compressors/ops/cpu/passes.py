"""Arrays and passes in the CPU's memory: numba's loops, whose results are there at once."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...method.base import SMALLEST_TAU
from ..array import host
from ..interface import Addends, Ops, Ranges, Sample
from ..readback import Pending, Readback
from ..results import Batch, HalfFormat, QuantizedPass, Quantizing, Selected, Target, ThresholdRule
from . import chunked, linear, minifloat, quantile, sparse, summing, topk
from .amounts import write_values
from .block_rows import fits_rows
from .blockwise import PIECE
from .linear_ranges import count_samples, extremes_of_each, quantize_between
from .ordered_sum import ordered_sum_of_squares
from .quantile_rows import quantile_rows
from .room import Room
from .rows import table
from .threshold import threshold_rows

T = TypeVar("T")


def _now(result: T) -> Pending[T]:
    return lambda: result


def _table(batch: Batch) -> tuple[NDArray[np.int64], list[Tensor]]:
    """The parameters as a table for kernels, and gradients that must live until these have returned."""
    wide = [each if each.dtype == torch.float32 else each.float() for each in batch.gradients]
    rows = table(
        [each.data_ptr() for each in batch.residuals],
        [each.data_ptr() for each in wide],
        [each.numel() for each in wide],
        batch.bases,
    )
    return rows, wide


def _kept(residual: Tensor | None) -> NDArray[np.float32] | None:
    return None if residual is None else residual.numpy()


def _extremes(ranges: Sequence[Ranges]) -> list[linear.Extremes]:
    """The ranges, which this device has made."""
    return [each for each in ranges if isinstance(each, linear.Extremes)]


def _all_fit(work: Quantizing, most: int = PIECE) -> bool:
    return fits_rows(max(work.sizes, default=0), work.block, most)


def _one_by_one(
    work: Quantizing,
) -> Iterator[tuple[NDArray[np.float32] | None, NDArray[np.float32], NDArray[Any], slice]]:
    """Residual, gradient and symbols of each parameter, and where its tables stand."""
    symbols, offsets = host(work.symbols), work.offsets
    for residual, gradient, at, tables in zip(
        work.residuals, work.gradients, offsets.symbols, offsets.tables, strict=True
    ):
        yield _kept(residual), gradient.float().numpy(), symbols[at], tables


class CpuOps(Ops):
    """See `Ops`. Arrays are NumPy's, and share memory with tensors."""

    device = torch.device("cpu")
    on_host = True

    def __init__(self, threads: int = 1) -> None:
        """Prepares.

        Args:
            threads: how many may share a pass. No result depends on it, but for sums of squares, which are
                metrics.
        """
        self.threads = threads
        self._room = Room()

    # Memory

    def empty(self, size: int, dtype: Any) -> NDArray[Any]:
        """See `Ops.empty`."""
        return np.empty(size, dtype)

    def zeros(self, size: int, dtype: Any) -> NDArray[Any]:
        """See `Ops.zeros`."""
        return np.zeros(size, dtype)

    def array(self, tensor: Tensor) -> NDArray[Any]:
        """See `Ops.array`."""
        tensor = tensor.detach().reshape(-1)
        halves = tensor.dtype in (torch.float16, torch.bfloat16)
        array: NDArray[Any] = tensor.view(torch.uint16).numpy() if halves else tensor.numpy()
        return array

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """See `Ops.tensor`."""
        return torch.from_numpy(array)

    def fetch(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array itself."""
        return array

    def fetch_all(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays themselves."""
        return list(arrays)

    def place_all(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays themselves."""
        return list(arrays)

    def target(self, elements: int, rule: ThresholdRule) -> Target:
        """See `Ops.target`."""
        return self._room.target(elements, rule)

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> list[bool]:
        """See `Ops.nonzero`."""
        return [not sparse.all_zero(each.float().numpy()) for each in gradients]

    def finite(self, gradients: Sequence[Tensor], returned: Readback) -> Pending[list[bool]]:
        """See `Ops.finite`."""
        return _now([bool(torch.isfinite(each).all()) for each in gradients])

    def squares(self, residual: Tensor | None, returned: Readback) -> Pending[float]:
        """See `Ops.squares`."""
        return _now(0.0 if residual is None else float(residual.double().square().sum()))

    def ordered_sum_of_squares(self, gradient: Tensor, returned: Readback) -> Pending[float]:
        """See `Ops.ordered_sum_of_squares`."""
        return _now(ordered_sum_of_squares(gradient.numpy()))

    def samples(
        self, residuals: Sequence[Tensor | None], gradients: Sequence[Tensor], most: int
    ) -> list[Tensor]:
        """Never asked for: whoever wants a sample takes it from the tensors."""
        raise NotImplementedError

    # Sparse passes

    def apply_momentum(
        self, velocities: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float
    ) -> list[Tensor]:
        """See `Ops.apply_momentum`; one call takes all."""
        wide = [each.float() for each in gradients]  # copies must live until the call has returned
        ends = list(accumulate([each.numel() for each in wide]))
        out = self._room.velocities(ends[-1] if ends else 0)
        begins = [0, *ends][: len(ends)]
        rows = table(
            [each.data_ptr() for each in velocities],
            [each.data_ptr() for each in wide],
            [each.numel() for each in wide],
            begins,
        )
        sparse.apply_momentum(rows, np.float32(momentum), out)
        return [torch.from_numpy(out[begin:end]) for begin, end in zip(begins, ends, strict=True)]

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, taus: Sequence[float], returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_by_threshold`; one call takes all."""
        rows, _wide = _table(batch)
        by, (words, values) = np.array(taus, np.float32), map(host, batch.target)
        found = threshold_rows(rule, rows, by, words, values, threads=self.threads)
        return _now(Selected(found.ends, found.residual_squares, found.nonfinite, by.tolist()))

    def take_largest(self, batch: Batch, counts: Sequence[int], returned: Readback) -> Pending[Selected]:
        """See `Ops.take_largest`; a few calls take all."""
        rows, _wide = _table(batch)
        return _now(Selected(*topk.topk_rows(rows, counts, *map(host, batch.target), threads=self.threads)))

    def take_largest_of_chunks(
        self, batch: Batch, chunk: int, keep: int, returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_largest_of_chunks`; one call takes all."""
        rows, _wide = _table(batch)
        found = chunked.chunked_rows(rows, chunk, keep, *map(host, batch.target))
        taus = [SMALLEST_TAU] * len(rows)
        return _now(Selected(found.ends, found.residual_squares, found.nonfinite, taus))

    def clear(self, words: NDArray[np.uint32], base: int, dense: Tensor) -> None:
        """See `Ops.clear`."""
        sparse.clear(words, base, dense.numpy())

    # Quantizing passes

    def extremes(self, given: Sequence[Addends], readback: Readback, returned: Readback) -> list[Ranges]:
        """See `Ops.extremes`; one call takes all."""
        return list(extremes_of_each(given, self.threads))

    def count_samples(
        self, samples: Sequence[Sample], bits: int, ranges: Sequence[Ranges], readback: Readback
    ) -> Pending[list[NDArray[np.int64]]]:
        """See `Ops.count_samples`; one call takes all."""
        return _now(list(count_samples(samples, bits, _extremes(ranges))))

    def linear_pass(
        self,
        work: Quantizing,
        lows: NDArray[np.float32],
        steps: NDArray[np.float32],
        returned: Readback,
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.linear_pass`; one call takes all, unless a block is very large."""
        if _all_fit(work):
            return _now(linear.linear_rows(work, lows, steps, self.threads))
        bits, block = work.bits, work.block
        return _now(
            [
                linear.linear_pass(kept, added, bits, block, symbols, lows[at], steps[at], self.threads)
                for kept, added, symbols, at in _one_by_one(work)
            ]
        )

    def linear_between(
        self,
        work: Quantizing,
        bits: Sequence[int],
        ranges: Sequence[Ranges],
        lows: NDArray[np.float32],
        steps: NDArray[np.float32],
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.linear_between`; one call takes all."""
        return _now(quantize_between(work, bits, _extremes(ranges), lows, steps, self.threads))

    def quantile_pass(
        self, work: Quantizing, means: NDArray[np.uint16], exponents: NDArray[np.int8], returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.quantile_pass`; a few calls take all, unless a block is very large."""
        bits, tables = work.bits, means.reshape(-1, 1 << work.bits)
        if _all_fit(work, quantile.SORTED_AT_ONCE):
            return _now(quantile_rows(work, tables, exponents, self.threads))
        return _now(
            [
                quantile.quantile_pass(
                    kept, added, bits, work.block, symbols, tables[at], exponents[at], self.threads
                )
                for kept, added, symbols, at in _one_by_one(work)
            ]
        )

    def fp8_pass(
        self, work: Quantizing, exponents: NDArray[np.int8], returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.fp8_pass`; one call takes all, unless a block is very large."""
        if _all_fit(work):
            return _now(minifloat.fp8_rows(work, exponents, self.threads))
        return _now(
            [
                minifloat.fp8_pass(kept, added, work.block, symbols, exponents[at], self.threads)
                for kept, added, symbols, at in _one_by_one(work)
            ]
        )

    def half_pass(
        self, kind: HalfFormat, work: Quantizing, returned: Readback
    ) -> Pending[list[QuantizedPass]]:
        """See `Ops.half_pass`; one call takes all."""
        return _now(minifloat.half_rows(kind, work, self.threads))

    # What is sent

    write_values = staticmethod(write_values)

    def add_words(
        self,
        words: NDArray[np.uint32],
        ends: NDArray[np.int64],
        shifts: NDArray[np.int64],
        taus: NDArray[np.float32] | None,
        values: NDArray[Any],
        total: NDArray[np.float32],
    ) -> None:
        """See `Ops.add_words`; one call takes all."""
        by = np.zeros(ends.size, np.float32) if taus is None else taus
        summing.add_words(
            summing.kind_of(values), ends, shifts, by, words, *summing.levels_and_floats(values), total
        )

    def add_to_each(
        self,
        words: NDArray[np.uint32],
        counts: Sequence[int],
        firsts: Sequence[int],
        values: NDArray[np.float32],
        dense: Sequence[Tensor],
    ) -> None:
        """See `Ops.add_to_each`; one call takes all."""
        if dense:
            rows = ([each.data_ptr() for each in dense], [each.numel() for each in dense], counts, firsts)
            sparse.add_to_each(np.array(rows, np.int64).T.copy(), words, values)


CPU = CpuOps()
"""With one thread."""
