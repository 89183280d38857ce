"""The interface of a data set's two parts: examples by number, a batch of them at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batches import Draw, epoch_order
from .shape import Shape

__all__ = ["Draw", "Examples", "Pair", "Parts", "Tensors"]

Pair = tuple[Tensor, Tensor]
"""Inputs [n, ...] and targets [n, ...] of n examples, on the CPU."""


class Examples(ABC):
    """Examples to train on, or to evaluate with."""

    in_memory = False
    """Whether a batch is ready at once, so that reading it in parallel to the step gains nothing."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of examples, at least 1."""

    @abstractmethod
    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """Returns some examples by number.

        Args:
            indices: int64 [n], each in 0..len - 1.
            draw: for examples that differ from epoch to epoch; None, as in evaluations: no randomness.

        Returns:
            Always the same for the same arguments, in any process.

        Raises:
            DataError: the data that is read is damaged.
        """

    def order(self, draw: Draw) -> NDArray[np.int64]:
        """The order of an epoch: a permutation of all examples, int64 [len]."""
        return epoch_order(len(self), draw.seed, draw.epoch)

    def stream(self, parts: Iterable[NDArray[np.int64]], draw: Draw) -> Iterator[Pair]:
        """Yields a batch for each of `parts`, in order; override it to read ahead in another way."""
        return (self.batch(indices, draw) for indices in parts)


@dataclass(frozen=True, eq=False)
class Parts:
    """The two parts of a data set, in any form."""

    train: Examples
    test: Examples
    """Held out for evaluation."""
    shape: Shape
    """The shape of an example."""
    fingerprint: str = ""
    """A hash of all content, to log with the run; empty if there is none."""


class Tensors(Examples):
    """Examples in memory."""

    in_memory = True

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        """Takes inputs [examples, ...] and targets [examples, ...], on the CPU."""
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`; these have no randomness."""
        chosen = torch.from_numpy(indices)
        return self.inputs[chosen], self.targets[chosen]


def evenly_spaced(count: int, most: int) -> NDArray[np.int64]:
    """Some of 0..count-1 at equal distances, int64 [min(count, most)], ascending; the first is 0."""
    chosen = min(count, most)
    return np.arange(chosen, dtype=np.int64) * count // chosen
