"""Adds updates to buckets, on the device where both are. Nothing here waits."""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..ops.array import host
from ..ops.cpu.summing import joined, kind_of, levels_and_floats, sum_updates
from ..ops.cpu.threads import portions
from ..ops.interface import Ops
from ..ops.segments import Numbers, Offsets, pieces
from ..wire.update import Update
from .layout import Part

Received: TypeAlias = Sequence[Update]
"""What one worker sent: what it compressed, and what it sent whole; what there is of both."""

_PIECE = 1 << 18
"""Elements, about, that are summed before the next ones; with fewer, calls take longer than memory."""


def add_update(update: Update, total: Tensor, ops: Ops) -> None:
    """Adds an update to a bucket, float32 [bucket elements], contiguous."""
    if not update.k:
        return
    out, segments = ops.array(total), update.segments
    if update.words is None:
        rows, tables = update.offsets.table, update.tables
        ops.add_values(update.form, update.values, update.block, tables, rows, out, segments.starts)
        return
    beside = update.values if update.taus is not None else update.signed_floats(ops)
    ops.add_words(update.words, np.cumsum(update.counts), segments.shifts, update.taus, beside, out)


def put_back(update: Update, parts: Sequence[Part], ops: Ops, leaving_out: Collection[int] = ()) -> None:
    """Adds an update that was not sent back to the residuals it was taken from, if there are any.

    Of the parameters of some ordinals the update says nothing that is right: they are left out.
    """
    segments = update.segments
    end = int(segments.starts[-1] + segments.sizes[-1])
    total = torch.zeros(end, dtype=torch.float32, device=ops.device)
    if leaving_out:
        # A pass leaves their symbols undefined, which could lie behind the end of a table.
        for ordinal, own in zip(segments.ordinals, update.offsets.symbols, strict=True):
            if ordinal in leaving_out:
                ops.tensor(update.values[own].view(np.uint8)).zero_()
    add_update(update, total, ops)
    for ordinal, start, size in zip(segments.ordinals, segments.starts, segments.sizes, strict=True):
        residual = parts[ordinal].residual
        if residual is not None and ordinal not in leaving_out:
            residual += total[start : start + size]  # a zero too: it makes -0.0 to 0.0


def sum_all(workers: Sequence[Received], divisor: int, total: Tensor, ops: Ops) -> None:
    """Fills a bucket, float32 [bucket elements], with workers' updates, added in order, over a divisor."""
    updates = [update for received in workers for update in received]
    if ops.on_host and updates and all(update.words is not None for update in updates):
        _sum_sparse(updates, divisor, total, ops)
    elif ops.on_host and updates and _fill_alone(updates, total.numel()):
        _sum_dense(updates, divisor, total, ops)
    else:
        total.zero_()
        for update in updates:
            add_update(update, total, ops)
        if divisor != 1:
            # A tensor, not a number: a GPU multiplies by a number's reciprocal, which rounds differently.
            total.div_(torch.full((), divisor, dtype=torch.float32, device=total.device))


def _sum_sparse(updates: Sequence[Update], divisor: int, total: Tensor, ops: Ops) -> None:
    """The same in one pass over the bucket: a block stays in the caches until all are added to it."""
    beside = [update.values if update.taus is not None else update.signed_floats(ops) for update in updates]
    ends = np.cumsum(np.concatenate([update.counts for update in updates]))
    shifts = np.concatenate([update.segments.shifts for update in updates])
    taus = [np.zeros(len(each.segments), np.float32) if each.taus is None else each.taus for each in updates]
    stops = np.cumsum([len(update.segments) for update in updates])
    words, values = joined([host(update.words) for update in updates]), joined(list(map(host, beside)))
    arguments = ends, shifts, joined(taus), words, *levels_and_floats(values)
    sum_updates(kind_of(values), stops, *arguments, np.float32(divisor), total.numpy())


def _fill_alone(updates: Sequence[Update], elements: int) -> bool:
    """Whether each of some updates sends every element of a bucket, in blocks that all are cut alike."""
    alike = {(update.form, update.block, update.segments.sizes.tobytes()) for update in updates}
    return len(alike) == 1 and all(update.words is None and update.k == elements for update in updates)


def _sum_dense(updates: Sequence[Update], divisor: int, total: Tensor, ops: Ops) -> None:
    """The same of every element, piece by piece: a piece stays in the caches until all are added to it."""
    rows, starts = _cut(updates[0].offsets, updates[0].block)
    out = total.numpy()
    for at in portions(rows[:, 1], 2, _PIECE):
        low, high = int(starts[at.start]), int(starts[at.stop - 1] + rows[at.stop - 1, 1])
        out[low:high] = 0
        for each in updates:
            ops.add_values(each.form, each.values, each.block, each.tables, rows[at], out, starts[at])
        if divisor != 1:
            out[low:high] /= np.float32(divisor)


def _cut(offsets: Offsets, block: int) -> tuple[Numbers, Numbers]:
    """Pieces of parameters that fill a bucket, as `Ops.add_values` takes them, and their starts there."""
    rows = [
        (begin + piece.elements.start, piece.elements.stop - piece.elements.start,
         first + piece.blocks.start, piece.blocks.stop - piece.blocks.start)
        for begin, size, first in zip(
            offsets.begins.tolist(), offsets.sizes.tolist(), offsets.firsts.tolist(), strict=True
        )
        for piece in pieces(size, block, _PIECE)
    ]  # fmt: skip
    table = np.array(rows, np.int64).reshape(-1, 4)
    return table, table[:, 0]  # symbols stand where elements do
