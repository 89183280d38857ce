"""Adds updates to dense arrays. Nothing here waits."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..ops.array import host
from ..ops.cpu import summing
from ..ops.cpu.ops import CPU
from ..ops.interface import Ops
from ..ops.offsets import Numbers
from ..wire.columns.updates import UpdateColumns
from ..wire.quantized import Quantized
from ..wire.update import Update
from .dense_sum import sum_dense, write_values
from .incoming import ColumnsReceived, Received
from .layout import Part, Unit


def add_to(update: Update, dense: Tensor, ops: Ops = CPU) -> None:
    """Adds an update to a contiguous float32 [n] tensor of the device where the update is."""
    _add(update, ops.array(dense), ops)


def _add(update: Update, out: Any, ops: Ops) -> None:
    """Adds an update to a float32 [n] array of the device."""
    form, values = update.form, update.values
    if update.words is None:
        if isinstance(values, Quantized):
            values.write_to(out, add=True, ops=ops)
        elif form == "fp16" or form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
            ops.half_values(form, values, out, True)
        else:
            dense = ops.tensor(out)
            dense += ops.tensor(values)
    elif form in ("bgt", "strom"):
        ops.add_taus(update.words, update.tau, out)
    elif form == "qgt":
        ops.add_levels(update.words, values, update.tau, out)
    elif update.k:
        ops.add_values(update.words, update.signed_floats(ops), out)


def add_all(updates: Received, total: Tensor, ops: Ops) -> None:
    """Adds updates about units to a bucket, float32 [bucket elements], in this order."""
    if isinstance(updates, ColumnsReceived):
        _add_columns(updates, total.numpy())
        updates = updates.whole
    out = ops.array(total)  # once: for a small parameter it costs more than what is added
    for update, unit in updates:
        if update.words is not None or len(unit.places) == 1:
            base = unit.base if update.words is not None else unit.places[0].start
            _add(update, out[base : base + unit.n], ops)
        else:
            amounts = ops.tensor(update.signed_floats(ops))
            for place, elements in unit.slices(every=True):
                total[place.start : place.start + place.elements] += amounts[elements]


def _add_columns(received: ColumnsReceived, out: NDArray[np.float32]) -> None:
    columns = received.updates
    if columns.words is None:
        assert columns.values is not None
        write_values(columns.values, columns.values.offsets.table, out, received.starts, add=True)
        return
    piece = _pieces_of(received)
    summing.add_updates(int(piece.kinds[0]), columns.words.ends, *piece[2:], out)


def _beside_columns(columns: UpdateColumns) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Levels and values beside the words of updates; none of what they have not."""
    levels, floats, values = np.empty(0, np.uint8), np.empty(0, np.float32), columns.values
    if values is not None and columns.form == "qgt":
        levels = host(values.symbols)
    elif values is not None and values.symbols.dtype == np.float32:
        floats = host(values.symbols)
    elif values is not None:
        ends = np.cumsum(columns.counts)
        floats = np.empty(int(ends[-1]), np.float32)
        write_values(values, values.offsets.table, floats, ends - columns.counts, add=False)
    return levels, floats


def put_back(update: Update, unit: Unit, parts: Sequence[Part], ops: Ops) -> None:
    """Adds an update that was not sent back to the residuals it was taken from, if there are any."""
    dense = torch.zeros(unit.n, dtype=torch.float32, device=ops.device)
    add_to(update, dense, ops)
    for place, elements in unit.slices(every=update.words is None):
        residual = parts[place.ordinal].residual
        if residual is not None:
            residual += dense[elements]  # a zero too: it makes -0.0 to 0.0


def sum_all(workers: Sequence[Received], divisor: int, total: Tensor, ops: Ops) -> None:
    """Fills a bucket, float32 [bucket elements], with workers' updates, added in order, over a divisor."""
    if ops.on_host and all(map(_is_sparse, workers)):
        sum_sparse(workers, divisor, total.numpy())
        return
    if sum_dense(workers, divisor, total):
        return
    total.zero_()
    for each in workers:
        add_all(each, total, ops)
    if divisor != 1:
        # A tensor, not a number: a GPU multiplies by a number's reciprocal, which rounds differently.
        total.div_(torch.full((), divisor, dtype=torch.float32, device=total.device))


def _is_sparse(received: Received) -> bool:
    if isinstance(received, ColumnsReceived):
        return received.updates.words is not None and not received.whole
    return all(update.words is not None for update, _ in received)


class _Pieces(NamedTuple):
    """Updates side by side, as `summing.sum_updates` takes them."""

    kinds: NDArray[np.int64]
    counts: Numbers
    bases: Numbers
    taus: NDArray[np.float32]
    words: NDArray[np.uint32]
    levels: NDArray[np.uint8]
    values: NDArray[np.float32]


def sum_sparse(workers: Sequence[Received], divisor: float, total: NDArray[np.float32]) -> None:
    """Fills a bucket, float32 [bucket elements], with the sum of sparse updates over a divisor.

    The same as zeros, to which updates are added in this order, divided: in one pass over the bucket.
    """
    pieces = [piece for piece in map(_pieces_of, workers) if piece.words.size]
    if not pieces:
        total[:] = 0
        return
    both = _side_by_side(pieces)
    summing.sum_updates(
        both.kinds,
        np.cumsum(both.counts),
        *both[2:],
        np.float32(divisor),
        total,
    )


def _side_by_side(pieces: Sequence[_Pieces]) -> _Pieces:
    """Pieces of several workers as one."""
    if len(pieces) == 1:
        return pieces[0]
    kinds, counts, bases, taus, words, levels, values = (list(column) for column in zip(*pieces, strict=True))
    sizes = [each.size for each in words]
    joined = map(np.concatenate, (kinds, counts, bases, taus, words))
    return _Pieces._make([*joined, _beside_all(levels, sizes), _beside_all(values, sizes)])


def _beside_all(arrays: Sequence[NDArray[Any]], sizes: Sequence[int]) -> NDArray[Any]:
    """What accompanies words of several workers, if it accompanies any."""
    if not any(array.size for array in arrays):
        return arrays[0]
    return np.concatenate([_as_long(array, size) for array, size in zip(arrays, sizes, strict=True)])


def _as_long(array: NDArray[Any], size: int) -> NDArray[Any]:
    """The array, or as much room where there is none: what stands there is not looked at."""
    return array if array.size == size else np.empty(size, array.dtype)


def _pieces_of(received: Received) -> _Pieces:
    if isinstance(received, ColumnsReceived):
        columns = received.updates
        assert columns.words is not None
        kinds = np.full(len(columns), _KINDS.get(columns.form, summing.VALUES), np.int64)
        taus = np.zeros(len(columns), np.float32) if columns.taus is None else columns.taus
        words, beside = host(columns.words.array), _beside_columns(columns)
        return _Pieces(kinds, columns.counts, received.starts, taus, words, *beside)
    kept = [(update, unit) for update, unit in received if update.k]
    kinds_of = [_KINDS.get(update.form, summing.VALUES) for update, _ in kept]
    return _Pieces(
        np.array(kinds_of, np.int64),
        np.array([update.k for update, _ in kept], np.int64),
        np.array([unit.base for _, unit in kept], np.int64),
        np.array([update.tau for update, _ in kept], np.float32),
        np.concatenate([_NO_WORDS, *(host(update.words) for update, _ in kept if update.words is not None)]),
        _beside(kept, kinds_of, summing.LEVELS, np.uint8),
        _beside(kept, kinds_of, summing.VALUES, np.float32),
    )


_NO_WORDS = np.empty(0, np.uint32)
_KINDS = {"bgt": summing.TAUS, "strom": summing.TAUS, "qgt": summing.LEVELS}


def _beside(
    updates: Sequence[tuple[Update, Unit]], kinds: Sequence[int], kind: int, dtype: type[np.generic]
) -> NDArray[Any]:
    """What accompanies the words of updates of a kind; as long as all words, unless there is none."""
    if kind not in kinds:
        return np.empty(0, dtype)
    pieces: list[NDArray[Any]] = []
    for (update, _), each in zip(updates, kinds, strict=True):
        if each != kind:
            pieces.append(np.empty(update.k, dtype))
        else:
            pieces.append(update.signed_floats())
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
