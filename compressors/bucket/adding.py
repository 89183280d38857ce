"""Adds updates to dense arrays. Nothing here waits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..ops.array import host
from ..ops.cpu import summing
from ..ops.cpu.ops import CPU
from ..ops.interface import Ops
from ..wire.quantized import Quantized
from ..wire.update import Update
from .incoming import DenseIncoming, Received
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
    if isinstance(updates, DenseIncoming):
        updates.add_to(total)
        return
    out = ops.array(total)  # once: for a small parameter it costs more than what is added
    for update, unit in updates:
        if update.words is not None or len(unit.places) == 1:
            base = unit.base if update.words is not None else unit.places[0].start
            _add(update, out[base : base + unit.n], ops)
        else:
            amounts = ops.tensor(update.signed_floats(ops))
            for place, elements in unit.slices(every=True):
                total[place.start : place.start + place.elements] += amounts[elements]


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
    dense = any(isinstance(each, DenseIncoming) for each in workers)
    if ops.on_host and not dense and all(update.words is not None for each in workers for update, _ in each):
        sum_sparse([pair for each in workers for pair in each], divisor, total.numpy())
        return
    total.zero_()
    for each in workers:
        add_all(each, total, ops)
    if divisor != 1:
        # A tensor, not a number: a GPU multiplies by a number's reciprocal, which rounds differently.
        total.div_(torch.full((), divisor, dtype=torch.float32, device=total.device))


def sum_sparse(updates: Sequence[tuple[Update, Unit]], divisor: float, total: NDArray[np.float32]) -> None:
    """Fills a bucket, float32 [bucket elements], with the sum of sparse updates over a divisor.

    The same as zeros, to which updates are added in this order, divided: in one pass over the bucket.
    """
    kept = [(update, unit) for update, unit in updates if update.k]
    if not kept:
        total[:] = 0
        return
    kinds = [_KINDS.get(update.form, summing.VALUES) for update, _ in kept]
    counts = [update.k for update, _ in kept]
    summing.sum_updates(
        np.array(kinds, np.int64),
        np.cumsum(counts),
        np.array([unit.base for _, unit in kept], np.int64),
        np.array([update.tau for update, _ in kept], np.float32),
        np.concatenate([host(update.words) for update, _ in kept if update.words is not None]),
        _beside(kept, kinds, summing.LEVELS, np.uint8),
        _beside(kept, kinds, summing.VALUES, np.float32),
        np.float32(divisor),
        total,
    )


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
