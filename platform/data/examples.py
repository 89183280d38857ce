"""The interface of a data set's two parts: examples by number, a batch of them at a time."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batches import epoch_order
from .draw import Draw
from .shape import Shape

__all__ = ["Data", "Draw", "Examples", "Pair", "Parts", "Tensors"]

Pair = tuple[Tensor, Tensor]
"""Inputs [n, ...] and targets [n, ...] of n examples, on the CPU."""


class Examples(ABC):
    """Examples to learn from, or to judge by."""

    in_memory = False
    """Whether a batch is ready at once: then nothing is gained by reading it beside the step."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are, at least 1."""

    @abstractmethod
    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """Examples by number.

        Args:
            indices: int64 [n], each in 0..len - 1.
            draw: for examples that differ from epoch to epoch; None, as in evaluations: no chance in them.

        Returns:
            Always the same for the same arguments, in any process.

        Raises:
            DataError: what is read now is damaged.
        """

    def order(self, draw: Draw) -> NDArray[np.int64]:
        """The order of an epoch: a permutation of all examples, int64 [len]."""
        return epoch_order(len(self), draw.seed, draw.epoch)

    def stream(self, parts: Iterable[NDArray[np.int64]], draw: Draw) -> Iterator[Pair]:
        """A batch for each of `parts`, in order; a source with its own way to read ahead overrides it."""
        return (self.batch(indices, draw) for indices in parts)


class Data(Protocol):
    """What is trained on, what it is judged by, and what an example looks like."""

    @property
    def train(self) -> Examples:
        """The training part."""

    @property
    def test(self) -> Examples:
        """The part held out for evaluation."""

    @property
    def shape(self) -> Shape:
        """Of an example."""

    @property
    def fingerprint(self) -> str:
        """A hash of all content, to be logged with the run; empty where none was taken."""


@dataclass(frozen=True, eq=False)
class Parts:
    """A `Data` that holds its fields."""

    train: Examples
    test: Examples
    shape: Shape
    fingerprint: str = ""


class Tensors(Examples):
    """Examples that lie in memory."""

    in_memory = True

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        """Takes inputs [examples, ...] and targets [examples, ...], on the CPU."""
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`; there is no chance in these."""
        chosen = torch.from_numpy(indices)
        return self.inputs[chosen], self.targets[chosen]
