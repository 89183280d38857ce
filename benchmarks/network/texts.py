"""A text for each worker, for network/network_target.py: data that differ."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from taugrad.platform.data import Parts
from taugrad.platform.data.batches import epoch_order
from taugrad.platform.data.examples import Draw, Examples, Pair
from taugrad.platform.data.text import load_text
from taugrad.platform.spec.data import Text


class TextByWorker(Examples):
    """Windows of one text, of which each worker trains on a part of its own, as long as the others'."""

    def __init__(self, windows: Examples, workers: int, batch: int) -> None:
        """`batch`: windows of a worker's step; its part of the text has a whole number of them."""
        self._windows, self._workers, self._batch = windows, workers, batch
        self._part = len(windows) // workers // batch * batch

    def __len__(self) -> int:
        return self._workers * self._part

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`."""
        return self._windows.batch(indices, draw)

    def order(self, draw: Draw) -> NDArray[np.int64]:
        """All windows, int64 [len]: of each batch, the first part is of worker 0's windows, and so on."""
        shuffled = epoch_order(self._part, draw.seed, draw.epoch)
        rows = np.arange(self._workers)[:, np.newaxis] * self._part + shuffled
        return rows.reshape(self._workers, -1, self._batch).swapaxes(0, 1).ravel()


def by_worker(workers: int, batch: int, **fields: int) -> Parts:
    """The standard library's files in equal parts, in the order of their names; `fields` are of `Text`."""
    parts = load_text(Text.model_validate(fields))
    return replace(parts, train=TextByWorker(parts.train, workers, batch))
