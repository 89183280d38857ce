"""Arrays and passes in the CPU's memory: numba's loops, whose results are there at once."""

from collections.abc import Sequence
from functools import lru_cache, partial
from threading import local
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..array import Flags, Floats32, Floats64, Numbers, host, readonly
from ..interface import (
    Batch,
    Extremes,
    Form,
    Kept,
    Ops,
    Pending,
    Quantizing,
    Readback,
    Selected,
    Sources,
    Target,
    ThresholdRule,
    scales_of,
)
from ..uniform import positions_of
from . import avx512, by_range, chunked, looking, quantile, summing, topk
from .blockwise import BLOCKS, ELEMENTS, FIRST_BLOCK, RESIDUAL, SYMBOL, Shares
from .threads import portions, run_all
from .threshold import SPARE, VALUE_DTYPE, WITHOUT_VALUES, threshold_rows

T = TypeVar("T")
_PIECE = 1 << 18
"""Elements, about, to which all workers' values are added before the next ones; with fewer, calls take longer
than memory."""


def _now(result: T) -> Pending[T]:
    return lambda: result


@lru_cache(64)  # samples are taken of the same parameters again and again
def _places(sizes: tuple[int, ...], counts: tuple[int, ...]) -> NDArray[np.int64]:
    return positions_of(np.array(sizes), np.array(counts))


class CpuOps(Ops):
    """See `Ops`. Arrays are NumPy's, and share memory with tensors."""

    device = torch.device("cpu")
    on_host = True

    def __init__(self, threads: int = 1, vectorized: bool = avx512.supported()) -> None:
        """So many threads may share a pass, and AVX-512 is used where a pass can.

        No result depends on either, but for sums of squares, which are metrics.
        """
        self.threads, self._vectorized = threads, vectorized
        # As long as the largest bucket, but a page of it takes up memory only once it was written to. For
        # each thread: sums are compressed in one of their own.
        self._room = local()

    def _kept_room(self, name: str, elements: int, dtype: type[np.generic]) -> NDArray[Any]:
        """Memory that passes write to, kept from bucket to bucket."""
        arrays: dict[str, NDArray[Any]] = vars(self._room)  # this thread's
        key = f"{name} of {dtype.__name__}"
        if key not in arrays or arrays[key].size < elements:
            arrays[key] = np.empty(elements, dtype)
        return arrays[key]

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

    def target(self, elements: int, rule: ThresholdRule, readback: Readback) -> Target:
        words = self._kept_room("words", elements + SPARE, np.uint32)
        beside = 1 if rule in WITHOUT_VALUES else elements + SPARE
        return Target(words, self._kept_room("values", beside, VALUE_DTYPE[rule]), readback)

    # Looking

    def nonzero(self, gradients: Sequence[Tensor]) -> Flags:
        batch, results = _looked_at(gradients), np.empty(len(gradients), np.bool_)
        looking.nonzero(batch.rows, results)
        return results

    def gather(self, gradients: Sequence[Tensor], readback: Readback) -> tuple[NDArray[Any], Pending[Flags]]:
        batch = _looked_at(gradients)
        out, broken = np.empty(int(batch.sizes.sum()), np.float32), np.empty(len(batch), np.bool_)
        looking.gather(batch.rows, out, broken)
        return out, _now(broken)

    def squares(self, tensors: Sequence[Tensor | None], readback: Readback) -> Pending[Floats64]:
        kept, results = [tensor for tensor in tensors if tensor is not None], np.zeros(len(tensors))
        sums = np.empty(len(kept))
        looking.squares(Batch.of([None] * len(kept), kept).rows, sums)
        results[[tensor is not None for tensor in tensors]] = sums
        return _now(results)

    def exact_squares(self, batch: Batch, readback: Readback) -> Pending[Floats64]:
        wide, largest, totals = batch.wide(), np.empty(len(batch), np.float32), np.empty(len(batch), np.int64)
        looking.largest(wide.rows, largest)
        scales = scales_of(largest, batch.sizes)
        looking.scaled_squares(wide.rows, scales, totals)
        return _now(totals / scales)

    def samples(self, batch: Batch, counts: Sequence[int], readback: Readback) -> Pending[list[Floats32]]:
        if not len(batch):
            return _now([])
        wide, sizes = batch.wide(), np.array(counts, np.int64)
        places = _places(tuple(batch.sizes.tolist()), tuple(counts))
        values = np.empty(places.size, np.float32)
        looking.take(wide.rows, sizes, places, values)
        return _now(np.split(values, np.cumsum(sizes)[:-1]))

    def ranked_samples(
        self, batch: Batch, counts: Sequence[int], ranks: Sequence[int]
    ) -> tuple[Floats32, Flags]:
        ends, kept = np.cumsum(counts), np.array(ranks, np.int64)
        values = np.concatenate(self.samples(batch, counts, Readback(self))())
        magnitudes, broken = np.empty(len(batch), np.float32), np.empty(len(batch), np.bool_)
        topk.ranked(values, ends, kept, magnitudes, broken)
        return magnitudes, broken

    # Sparse passes

    def apply_momentum(self, batch: Batch, velocities: Sequence[Tensor], momentum: float) -> Batch:
        wide, sizes = batch.wide(), batch.sizes
        out, rows = self._kept_room("velocities", int(sizes.sum()), np.float32), wide.rows.copy()
        rows[:, 0] = [velocity.data_ptr() for velocity in velocities]
        rows[:, 3] = np.cumsum(sizes) - sizes
        looking.apply_momentum(rows, np.float32(momentum), out)
        return batch.with_gradients(torch.from_numpy(out[: int(sizes.sum())]))

    def take_by_threshold(
        self, rule: ThresholdRule, batch: Batch, target: Target, taus: Sequence[float]
    ) -> Pending[Selected]:
        wide, by, (words, values) = batch.wide(), np.array(taus, np.float32), map(host, target[:2])
        return _now(threshold_rows(rule, wide.rows, by, words, values, self.threads, self._vectorized))

    def take_largest(self, batch: Batch, target: Target, counts: Sequence[int]) -> Pending[Selected]:
        wide, (words, values) = batch.wide(), map(host, target[:2])
        return _now(topk.topk_rows(wide.rows, counts, words, values, self.threads, self._vectorized))

    def take_largest_of_chunks(
        self, batch: Batch, target: Target, chunk: int, keep: int
    ) -> Pending[Selected]:
        wide, (words, values) = batch.wide(), map(host, target[:2])
        return _now(chunked.chunked_rows(wide.rows, chunk, keep, words, values, self._vectorized))

    # Quantizing passes

    def extremes(self, batch: Batch, readback: Readback) -> tuple[Any, Pending[Extremes]]:
        ranges = by_range.extremes(batch.wide(), self.threads)
        return ranges, _now(ranges)

    def quantize(self, form: Form, work: Quantizing) -> Pending[Kept]:
        work, put_back = work._replace(batch=work.batch.wide()), partial(_put_back, form, work)
        if form == "quantile":
            return _now(quantile.quantize(work, put_back, self.threads))
        return _now(by_range.quantize(form, work, put_back, self.threads))

    def linear_between(self, work: Quantizing, bits: Sequence[int], ranges: Any) -> Pending[Kept]:
        work = work._replace(batch=work.batch.wide())
        return _now(by_range.quantize_between(work, bits, ranges, self.threads))

    # What is sent

    def add_values(
        self, form: str, sources: Sources, block: int, rows: Numbers, out: Any, starts: Numbers, divisor: int
    ) -> None:
        """See `Ops.add_values`: a piece stays in the caches until all workers' values are added to it."""
        whole, begin, last = out.ctypes.data, 0, len(sources) - 1
        if last:
            rows, starts = _cut(rows, starts, block)

        def add(at: slice) -> None:
            for number, (symbols, tables) in enumerate(sources):
                by = divisor if number == last and divisor else 1
                fill = bool(divisor) and number == begin
                _add_rows(form, symbols, block, tables, rows[at], whole + 4 * starts[at], fill, by)

        run_all([partial(add, at) for at in portions(rows[:, 1], 2, _PIECE)], self.threads)

    def add_words(self, words: Any, ends: Numbers, rows: Numbers, taus: Floats32 | None, values: Any) -> None:
        if values is None:
            looking.clear(readonly(words), ends, rows)
            return
        by = readonly(np.zeros(ends.size, np.float32) if taus is None else taus)
        summing.add_words(ends, rows, by, readonly(words), *summing.amounts_of(values))


def _looked_at(gradients: Sequence[Tensor]) -> Batch:
    return Batch.of([None] * len(gradients), gradients).wide()


def _put_back(form: str, work: Quantizing, shares: Shares) -> None:
    rows = np.ascontiguousarray(shares[:, [SYMBOL, ELEMENTS, FIRST_BLOCK, BLOCKS]])
    _add_rows(form, work.symbols, work.block, work.tables, rows, shares[:, RESIDUAL].copy(), False, 1)


def _add_rows(
    form: str, symbols: Any, block: int, tables: Any, rows: Numbers, addresses: Numbers, fill: bool, by: int
) -> None:
    tables = tuple(map(readonly, tables))
    if form == "quantile":
        tables = tables[0], tables[1].reshape(max(tables[0].size, 1), -1)
    given = readonly(symbols), block, tables, rows, addresses, fill, np.float32(by)
    by_range.add_rows(by_range.form_of(form), *given)


def _cut(rows: Numbers, starts: Numbers, block: int) -> tuple[Numbers, Numbers]:
    """Pieces of rows, of whole blocks or of a part of one."""
    sizes = rows[:, 1]
    lengths = np.maximum(1, np.minimum(sizes, block or sizes))
    steps = np.where(lengths <= _PIECE, _PIECE // lengths * lengths, _PIECE)
    # A block longer than a piece is cut by itself: no piece reaches from one into the next.
    within = np.where(lengths <= _PIECE, sizes, lengths)
    per, blocks = -(-within // steps), np.where(lengths <= _PIECE, 1, -(-sizes // lengths))
    numbers = np.repeat(np.arange(len(rows)), per * blocks)
    index = np.arange(numbers.size) - np.repeat(np.cumsum(per * blocks) - per * blocks, per * blocks)
    begins = index // per[numbers] * within[numbers] + index % per[numbers] * steps[numbers]
    stops = np.minimum(
        np.minimum(begins + steps[numbers], (index // per[numbers] + 1) * within[numbers]), sizes[numbers]
    )
    first = begins // lengths[numbers]
    counts = -(-stops // lengths[numbers]) - first
    cut = np.stack((rows[numbers, 0] + begins, stops - begins, rows[numbers, 2] + first, counts), axis=1)
    return cut, starts[numbers] + begins


CPU = CpuOps()
"""With one thread."""
