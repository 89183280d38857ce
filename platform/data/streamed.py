"""Examples that are read when they are needed: by Ray's tasks beside the training, or in its process.

Both ways run the same function over the same examples in the same order, so batches are the same bit for bit,
and a run that goes on from the middle of an epoch begins its stream there.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from .examples import Draw, Examples, Pair
from .pixels import Normalization
from .ray_stream import Columns, Reader, read_by_ray


class Streamed(Examples):
    """Images, whose pixels are normalised, or rows of numbers; with their labels.

    `augment`: whether training images are changed at random.
    """

    def __init__(self, read: Reader, normalize: Normalization | None, *, augment: bool) -> None:
        self._read, self._normalize, self._augment = read, normalize, augment

    def __len__(self) -> int:
        return len(self._read)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`; read in this process."""
        return self._finished(self._read.of(indices)(indices, draw if self._augment else None))

    def stream(self, parts: Iterable[NDArray[np.int64]], draw: Draw) -> Iterator[Pair]:
        """See `Examples.stream`: through Ray, as long as there are Ray and a free CPU."""
        ahead, done = list(parts), 0
        for loaded in read_by_ray(ahead, self._read, draw if self._augment else None):
            yield self._finished(loaded)
            done += 1
        for indices in ahead[done:]:
            yield self.batch(indices, draw)

    def _finished(self, loaded: Columns) -> Pair:
        labels = torch.from_numpy(loaded["label"])
        if labels.is_floating_point():
            labels = labels[:, None]
        if self._normalize is None:
            return torch.from_numpy(loaded["numbers"]), labels
        return self._normalize(loaded["pixels"].transpose(0, 3, 1, 2)), labels
