"""Batches for this process's workers, read while the previous step runs."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .batches import worker_share
from .examples import Draw, Examples, Pair

if TYPE_CHECKING:
    from ..training.batch_plan import Position

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


class Feed:
    """An epoch's batches, or the rest of them."""

    def __init__(
        self,
        examples: Examples,
        draw: Draw,
        positions: Sequence["Position"],
        ranks: Sequence[int],
        workers: int,
        device: torch.device,
    ) -> None:
        """Begins to read.

        Args:
            examples: the training part.
            draw: the run's seed and the epoch.
            positions: the epoch's iterations, from the next one on.
            ranks: this process's workers.
            workers: how many share a batch.
            device: where batches go.
        """
        self.waited_s = 0.0
        """How long the latest iteration waited for its batches."""
        self._device = device
        order = examples.order(draw)
        shares = [
            worker_share(order, position.start, position.batch_size, rank, workers, position.workers)
            for position in positions
            for rank in ranks
        ]
        self._weights = iter([share.weight for share in shares])
        self._ranks = len(ranks)
        pairs = examples.stream((share.indices for share in shares), draw)
        self._pairs: Iterator[Pair] = pairs if examples.in_memory else _ReadAhead(pairs)

    def next(self) -> list[Batch]:
        """The next iteration's batches, one a rank.

        Raises:
            DataError: one of them could not be read.
        """
        started = perf_counter()
        batches = []
        for _ in range(self._ranks):
            inputs, targets = next(self._pairs)
            batches.append(Batch(inputs.to(self._device), targets.to(self._device), next(self._weights)))
        self.waited_s = perf_counter() - started
        return batches

    def close(self) -> None:
        """Reads no further."""
        if isinstance(self._pairs, _ReadAhead):
            self._pairs.close()

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _ReadAhead(Iterator[Pair]):
    """What an iterator gives, fetched by a thread a few items before it is asked for."""

    def __init__(self, pairs: Iterator[Pair]) -> None:
        self._pairs, self._thread = pairs, ThreadPoolExecutor(1, "data")
        self._ahead = deque(self._thread.submit(next, pairs) for _ in range(_AHEAD))

    def __next__(self) -> Pair:
        pair = self._ahead.popleft().result()  # or its error, the end included
        self._ahead.append(self._thread.submit(next, self._pairs))
        return pair

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(cancel_futures=True)
