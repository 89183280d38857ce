"""Parts of a model's parameters, by ranges of their elements (Krizhevsky's 1/K shards)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """A range of one parameter's elements."""

    ordinal: int
    """Of the parameter."""
    start: int
    stop: int


@dataclass(frozen=True)
class Shard:
    """A contiguous range of all elements, where one parameter follows the other."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    @property
    def ordinals(self) -> list[int]:
        """Of the parameters that it has a piece of."""
        return [piece.ordinal for piece in self.pieces]

    def of(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Its pieces of flat tensors [numel], one a parameter; views."""
        return [tensors[piece.ordinal][piece.start : piece.stop] for piece in self.pieces]


def cut(sizes: Sequence[int], shards: int) -> list[Shard]:
    """Cuts parameters into ranges whose lengths differ by at most one.

    Args:
        sizes: elements of each parameter.
        shards: how many; those beyond the number of elements are empty.
    """
    total = sum(sizes)
    bounds = [total * i // shards for i in range(shards + 1)]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    found = []
    for low, high in pairwise(bounds):
        pieces = [
            Piece(ordinal, max(low - start, 0), min(high - start, size))
            for ordinal, (start, size) in enumerate(zip(starts, sizes, strict=False))
            if size and start < high and start + size > low
        ]
        found.append(Shard(low, high, tuple(pieces)))
    return found
