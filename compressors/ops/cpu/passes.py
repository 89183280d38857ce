"""Arrays and passes in the CPU's memory: numba's loops, whose results are there at once."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from ...method.base import Form, ThresholdRule
from ..array import host, readonly
from ..interface import (
    Batch,
    Ops,
    QuantizedPass,
    Quantizing,
    Ranges,
    Selected,
    Target,
)
from ..readback import Pending, Readback
from . import avx512, by_range, chunked, quantile, summing, topk
from .rows import floats, table
from .threshold import SPARE, VALUE_DTYPE, WITHOUT_VALUES, threshold_rows

T = TypeVar("T")
_LARGEST = np.float32(np.finfo(np.float32).max)
_FIRST = 1024
"""Elements of which mostly one is not zero."""


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


@njit(nogil=True, cache=True)
def _apply_momentum(rows, momentum, out):  # type: ignore[no-untyped-def]
    """velocity = momentum * velocity + gradient, where that is finite; out receives it wherever.

    Args:
        rows: see `rows.py`; velocities stand instead of residuals.
        momentum: float32.
        out: float32; a row's elements begin at its base.
    """
    for i in range(rows.shape[0]):
        velocity, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        into = out[rows[i, 3] : rows[i, 3] + rows[i, 2]]
        for j in range(velocity.size):
            total = velocity[j] * momentum + gradient[j]
            into[j] = total
            velocity[j] = total if abs(total) <= _LARGEST else velocity[j]


class CpuOps(Ops):
    """See `Ops`. Arrays are NumPy's, and share memory with tensors."""

    device = torch.device("cpu")
    on_host = True

    def __init__(self, threads: int = 1, vectorized: bool = avx512.supported()) -> None:
        """Prepares.

        Args:
            threads: how many may share a pass. No result depends on it, but for sums of squares, which are
                metrics.
            vectorized: use AVX-512 where a pass can. No result depends on it, with the same exception.
        """
        self.threads, self._vectorized = threads, vectorized
        # As long as the largest bucket, but a page of it takes up memory only once it was written to.
        self._room: dict[tuple[str, type[np.generic]], NDArray[Any]] = {}

    def _kept_room(self, name: str, elements: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Memory that passes write to, kept from bucket to bucket."""
        found = self._room.get((name, dtype))
        if found is None or found.size < elements:
            found = self._room[name, dtype] = np.empty(elements, dtype)
        return found

    # Memory

    def empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return np.empty(size, dtype)

    def zeros(self, size: int, dtype: Any) -> NDArray[Any]:
        return np.zeros(size, dtype)

    def array(self, tensor: Tensor) -> NDArray[Any]:
        tensor = tensor.detach().reshape(-1)
        halves = tensor.dtype in (torch.float16, torch.bfloat16)
        array: NDArray[Any] = tensor.view(torch.uint16).numpy() if halves else tensor.numpy()
        return array

    def tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array)

    def fetch_all(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays themselves."""
        return list(arrays)

    def place_all(self, arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The arrays themselves."""
        return list(arrays)

    def target(self, elements: int, rule: ThresholdRule) -> Target:
        words = self._kept_room("words", elements + SPARE, np.uint32)
        beside = 1 if rule in WITHOUT_VALUES else elements + SPARE
        return Target(words, self._kept_room("values", beside, VALUE_DTYPE[rule]))

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> list[bool]:
        return [bool(each[:_FIRST].any()) or bool(each.any()) for each in gradients]

    def finite(self, gradients: Sequence[Tensor], returned: Readback) -> Pending[list[bool]]:
        return _now([bool(torch.isfinite(each).all()) for each in gradients])

    def squares(self, residual: Tensor | None, returned: Readback) -> Pending[float]:
        return _now(0.0 if residual is None else float(residual.double().square().sum()))

    # Sparse passes

    def apply_momentum(
        self, velocities: Sequence[Tensor], gradients: Sequence[Tensor], momentum: float
    ) -> list[Tensor]:
        """See `Ops.apply_momentum`; one call takes all."""
        wide = [each.float() for each in gradients]  # copies must live until the call has returned
        ends = list(accumulate([each.numel() for each in wide]))
        out = self._kept_room("velocities", ends[-1] if ends else 0, np.float32)
        begins = [0, *ends][: len(ends)]
        rows = table(
            [each.data_ptr() for each in velocities],
            [each.data_ptr() for each in wide],
            [each.numel() for each in wide],
            begins,
        )
        _apply_momentum(rows, np.float32(momentum), out)
        return [torch.from_numpy(out[begin:end]) for begin, end in zip(begins, ends, strict=True)]

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, taus: Sequence[float], returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_by_threshold`; one call takes all."""
        rows, _wide = _table(batch)
        by, (words, values) = np.array(taus, np.float32), map(host, batch.target)
        return _now(threshold_rows(rule, rows, by, words, values, self.threads, self._vectorized))

    def take_largest(self, batch: Batch, counts: Sequence[int], returned: Readback) -> Pending[Selected]:
        """See `Ops.take_largest`; a few calls take all."""
        rows, _wide = _table(batch)
        words, values = map(host, batch.target)
        return _now(topk.topk_rows(rows, counts, words, values, self.threads, self._vectorized))

    def take_largest_of_chunks(
        self, batch: Batch, chunk: int, keep: int, returned: Readback
    ) -> Pending[Selected]:
        """See `Ops.take_largest_of_chunks`; one call takes all."""
        rows, _wide = _table(batch)
        words, values = map(host, batch.target)
        return _now(chunked.chunked_rows(rows, chunk, keep, words, values, self._vectorized))

    def clear(self, words: NDArray[np.uint32], base: int, dense: Tensor) -> None:
        dense.numpy()[(words >> 1).astype(np.int64) - base] = 0

    # Quantizing passes

    def extremes(
        self, given: Sequence[tuple[Tensor | None, Tensor]], readback: Readback, returned: Readback
    ) -> list[Ranges]:
        """See `Ops.extremes`; one call takes all."""
        return list(by_range.extremes(given, self.threads))

    def quantize(
        self, form: Form, work: Quantizing, tables: Sequence[Any], returned: Readback
    ) -> Pending[list[QuantizedPass]]:

        def put_back(symbols: NDArray[Any], block: int, at: slice, out: NDArray[np.float32]) -> None:
            rows = np.array([[0, symbols.size, at.start, at.stop - at.start]])
            self.add_values(form, symbols, block, tuple(tables), rows, out, np.zeros(1, np.int64))

        if form != "quantile":
            return _now(by_range.quantize_rows(form, work, tables, put_back, self.threads))
        exponents, means = tables
        by_block = means.reshape(-1, 1 << work.bits)
        return _now(quantile.quantile_rows(work, by_block, exponents, put_back, self.threads))

    def linear_between(
        self,
        work: Quantizing,
        bits: Sequence[int],
        ranges: Sequence[Ranges],
        lows: NDArray[np.float32],
        steps: NDArray[np.float32],
    ) -> Pending[list[QuantizedPass]]:
        return _now(by_range.quantize_between(work, bits, ranges, lows, steps, self.threads))

    # What is sent

    def add_values(
        self,
        form: str,
        symbols: NDArray[Any],
        block: int,
        tables: tuple[NDArray[Any], ...],
        rows: NDArray[np.int64],
        out: NDArray[np.float32],
        starts: NDArray[np.int64],
    ) -> None:
        if form == "quantile":
            exponents, means = tables
            tables = means.reshape(max(exponents.size, 1), -1), exponents
        for (begin, n, first, blocks), start in zip(rows.tolist(), starts.tolist(), strict=True):
            own, into = symbols[begin : begin + n], out[start : start + n]
            length, own_tables = block if 0 < block < n else max(n, 1), slice(first, first + blocks)
            here = tuple([table[own_tables] for table in tables])
            if form == "f32":
                into += own
            elif form == "quantile":
                add: Any = quantile.add_values
                add(own, length, *here, into)
            else:
                by_range.add_values(by_range.form_of(form), own, length, here, into)

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
        by = readonly(np.zeros(ends.size, np.float32) if taus is None else taus)
        beside = summing.levels_and_floats(values)
        summing.add_words(summing.kind_of(values), ends, shifts, by, readonly(words), *beside, total)


CPU = CpuOps()
"""With one thread."""
