"""Adds what workers sent to a bucket, or back to the residuals that it was taken from.

It is added on the device where it is; nothing here waits.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..ops.array import host
from ..ops.cpu.summing import amounts_of, joined, sum_updates
from ..ops.interface import Ops
from ..ops.parts import Part
from ..wire.update import Update

Received: TypeAlias = Sequence[Update]
"""What one worker sent: what it compressed, and what it sent whole; what there is of both."""


def add_update(update: Update, total: Tensor, ops: Ops) -> None:
    """Adds an update to a bucket, float32 [bucket elements], contiguous."""
    if not update.k:
        return
    segments = update.segments
    if update.words is None:
        source, rows = (update.values, update.tables), update.offsets.table
        ops.add_values(update.form, [source], update.block, rows, ops.array(total), segments.starts, 0)
        return
    starts = total.data_ptr() + 4 * segments.starts
    rows = np.stack((starts, starts, segments.sizes, segments.firsts), axis=1)
    beside = update.values if update.taus is not None else update.signed_floats(ops)
    ops.add_words(update.words, np.cumsum(update.counts), rows, update.taus, beside)


def put_back(update: Update, parts: Sequence[Part], ops: Ops, leaving_out: Collection[int] = ()) -> None:
    """Adds an update that was not sent back to the residuals it was taken from, if there are any.

    Of the parameters of some ordinals the update says nothing that is right: they are left out.
    """
    segments = update.segments
    end = int(segments.starts[-1] + segments.sizes[-1])
    total = torch.zeros(end, dtype=torch.float32, device=ops.device)
    if leaving_out:
        # A pass leaves their symbols undefined, which could lie behind the end of a table.
        for ordinal, place in zip(segments.ordinals, update.offsets.symbols, strict=True):
            if ordinal in leaving_out:
                ops.tensor(update.values[place]).zero_()
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
    elif updates and _fill_alone(updates, total.numel()):
        first, sources = updates[0], [(update.values, update.tables) for update in updates]
        rows, starts = first.offsets.table, first.segments.starts
        ops.add_values(first.form, sources, first.block, rows, ops.array(total), starts, divisor)
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
    taus = [np.zeros(len(one.segments), np.float32) if one.taus is None else one.taus for one in updates]
    stops = np.cumsum([len(update.segments) for update in updates])
    words, values = joined([host(update.words) for update in updates]), joined(list(map(host, beside)))
    arguments = stops, ends, shifts, joined(taus), words, *amounts_of(values)
    sum_updates(*arguments, np.float32(divisor), total.numpy())


def _fill_alone(updates: Sequence[Update], elements: int) -> bool:
    """Whether each of some updates sends every element of a bucket, in blocks that all are cut alike."""
    alike = {(update.form, update.block, update.segments.sizes.tobytes()) for update in updates}
    return len(alike) == 1 and all(update.words is None and update.k == elements for update in updates)
