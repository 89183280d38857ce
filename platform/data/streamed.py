"""Examples that are read when they are needed: by Ray Data's tasks beside the training, or in its process.

Both ways run the same functions over the same tickets in the same order, so batches are the same bit for bit,
and a run that goes on from the middle of an epoch begins its stream there.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .examples import Draw, Examples, Pair
from .ray_stream import read_by_ray

Columns = Mapping[str, NDArray[Any]]
"""By name, [rows, ...] each."""
Load = Callable[[Columns], dict[str, NDArray[Any]]]
"""Reads the examples of some tickets, row for row; pickled, and torch must not be needed for it."""


class Streamed(Examples):
    """Examples whose reading is split in two: what any process can do, and what is left for this one."""

    @abstractmethod
    def tickets(self, indices: NDArray[np.int64]) -> Columns:
        """What `loader`'s function needs to know of some examples: where they lie, their numbers."""

    @abstractmethod
    def loader(self, draw: Draw | None) -> Load:
        """The function that reads; small, since every task gets it."""

    @abstractmethod
    def finished(self, loaded: Columns, indices: NDArray[np.int64]) -> Pair:
        """The batch of what was read."""

    @property
    @abstractmethod
    def bytes_each(self) -> int:
        """How large an example is between a task and this process, about."""

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`; read in this process."""
        return self.finished(self.loader(draw)(self.tickets(indices)), indices)

    def stream(self, parts: Iterable[NDArray[np.int64]], draw: Draw) -> Iterator[Pair]:
        """See `Examples.stream`: through Ray Data, as long as there are Ray and a free CPU."""
        ahead: Sequence[NDArray[np.int64]] = list(parts)
        done = 0
        for loaded in read_by_ray(ahead, self.tickets, self.loader(draw), self.bytes_each):
            yield self.finished(loaded, ahead[done])
            done += 1
        for indices in ahead[done:]:
            yield self.batch(indices, draw)
