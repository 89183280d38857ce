"""Which examples a worker sees at a step. Pure NumPy: the same answer for any number of workers.

Every worker computes the whole epoch's order and takes its part of each batch, so nothing is exchanged, and
a run that goes on from a checkpoint only needs the epoch and the iteration.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Share:
    """One worker's part of one batch."""

    indices: NDArray[np.int64]
    """Examples of the training part, int64 [n], n at least 1."""
    weight: float
    """Factor for the mean loss over `indices`: the plain mean of the products over all workers is the mean
    loss of the batch."""


def epoch_order(examples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The training examples shuffled for one epoch, counted from 0: a permutation, int64 [examples].

    It depends on the arguments alone.
    """
    order = np.random.default_rng([seed, epoch]).permutation(examples)
    return order.astype(np.int64, copy=False)


def iterations_per_epoch(examples: int, batch_size: int) -> int:
    """How many batches an epoch has; the last one may be smaller."""
    return -(-examples // batch_size)


def worker_share(
    order: NDArray[np.int64], start: int, batch_size: int, rank: int, workers: int, at_work: int | None = None
) -> Share:
    """Cuts one worker's part from one batch: int64 indices, a view of `order`.

    The batch is `order[start:][:batch_size]` of the epoch's order, int64 [examples]. Its parts are
    contiguous, and the first ones are one longer where it cannot be divided evenly; only the first `at_work`
    of the workers share it, by default all. A worker that is left without examples gets the first of the
    batch with weight 0: its backward pass must run, or the others would wait for ever.
    """
    sharing = workers if at_work is None else at_work
    batch = order[start : start + batch_size]
    part = batch[_part(len(batch), rank, sharing)] if rank < sharing else batch[:0]
    if len(part) == 0:
        return Share(batch[:1], 0.0)
    return Share(part, len(part) * workers / len(batch))


def _part(length: int, rank: int, workers: int) -> slice:
    """The `rank`-th of `workers` contiguous, nearly equal parts, as `np.array_split` would cut them."""
    shorter, longer_parts = divmod(length, workers)
    start = rank * shorter + min(rank, longer_parts)
    return slice(start, start + shorter + (rank < longer_parts))


@dataclass(frozen=True)
class Draw:
    """What chance in an example follows from, besides its number: augmentation, where a text is cut."""

    seed: int
    epoch: int
    """Counted from 0."""

    def of(self, index: int) -> np.random.Generator:
        """An example's own random numbers, the same on every worker and after a resume."""
        return np.random.default_rng([self.seed, self.epoch, index])
