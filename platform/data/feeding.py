"""Batches for this process's workers, read while the previous step runs."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .batches import worker_share
from .examples import Draw, Examples, Pair

if TYPE_CHECKING:
    from .batch_plan import Position

_AHEAD = 4
"""Workers' batches that are read before they are asked for."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One worker's part of one batch, on its device."""

    inputs: Tensor
    """[n, ...], n at least 1."""
    targets: Tensor
    """[n, ...]"""
    weight: float
    """Factor for their mean loss: the plain mean of the products over all workers is the batch's."""

    def __len__(self) -> int:
        return len(self.targets)


def feed(
    examples: Examples,
    draw: Draw,
    positions: Sequence["Position"],
    ranks: Sequence[int],
    workers: int,
    device: torch.device,
) -> Generator[list[Batch], None, None]:
    """An epoch's batches, or the rest of them; to be closed, as it may read ahead.

    Of the training part with the run's and the epoch's randomness (`draw`), for the iterations `positions`,
    on `device`. Yields an iteration's batches, one per rank of this process; raises DataError: one cannot be
    read.
    """
    order = examples.order(draw)
    shares = [
        worker_share(order, position.start, position.batch_size, rank, workers, position.workers)
        for position in positions
        for rank in ranks
    ]
    stream = examples.stream((share.indices for share in shares), draw)
    with nullcontext(stream) if examples.in_memory else closing(_read_ahead(stream)) as pairs:
        weights = iter([share.weight for share in shares])
        for _ in positions:
            taken = (next(pairs) for _ in ranks)
            yield [Batch(x.to(device), y.to(device), next(weights)) for x, y in taken]


def _read_ahead(pairs: Iterator[Pair]) -> Generator[Pair, None, None]:
    """What an iterator gives, fetched by a thread a few items before it is asked for."""
    thread = ThreadPoolExecutor(1, "data")
    try:
        ahead = deque(thread.submit(next, pairs, None) for _ in range(_AHEAD))
        while (pair := ahead.popleft().result()) is not None:
            ahead.append(thread.submit(next, pairs, None))
            yield pair
    finally:
        thread.shutdown(cancel_futures=True)
