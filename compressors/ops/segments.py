"""Parameters of a bucket side by side: where their elements, and where their symbols and tables stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ..lazy import numpy as np
from .array import Numbers, Words


@dataclass(frozen=True, eq=False)
class Segments:
    """The parameters that an update is about, one after the other without gaps; int64 [m], none empty.

    Positions in an update count from the first element of the first parameter. In the bucket other parameters
    may lie between these, which are sent otherwise.
    """

    ordinals: tuple[int, ...]
    """By parameter, its index among the bucket's parameters."""
    starts: Numbers
    """Its first element in the bucket."""
    sizes: Numbers

    def __len__(self) -> int:
        return len(self.ordinals)

    @cached_property
    def places(self) -> Numbers:
        """The ordinals, to index with: int64 [m]."""
        return np.array(self.ordinals, np.int64)

    @cached_property
    def ends(self) -> Numbers:
        """The position behind the last element of each."""
        return np.cumsum(self.sizes)

    @cached_property
    def firsts(self) -> Numbers:
        """The position of the first element of each."""
        return self.ends - self.sizes

    @cached_property
    def shifts(self) -> Numbers:
        """What has to be added to a position in each, to have the element of the bucket."""
        return self.starts - self.firsts

    @cached_property
    def n(self) -> int:
        """Elements of all."""
        return int(self.sizes.sum())

    def counts_of(self, words: Words) -> Numbers:
        """How many words, uint32 [k], position << 1 | sign, ascending, lie in each."""
        # A limit of another type would cost a copy of the words.
        ends = np.searchsorted(words, self.ends.astype(np.uint32) << np.uint32(1))
        return np.diff(ends, prepend=0)


@dataclass(frozen=True, eq=False)
class Offsets:
    """Where symbols and tables of several parameters stand in arrays that they share; int64 [m]."""

    begins: Numbers
    """The first symbol of each."""
    sizes: Numbers
    """How many symbols."""
    firsts: Numbers
    """Its first block."""
    blocks: Numbers
    """How many blocks."""

    @classmethod
    def of(cls, sizes: Numbers, block: int) -> Offsets:
        """Places `sizes` symbols per parameter in blocks of `block`; 0: one block per parameter.

        A parameter's last block may be shorter.
        """
        blocks = -(-sizes // block) if block else np.minimum(sizes, 1)
        return cls(np.cumsum(sizes) - sizes, sizes, np.cumsum(blocks) - blocks, blocks)

    @cached_property
    def symbols(self) -> tuple[slice, ...]:
        """The symbols of each."""
        return tuple(map(slice, self.begins.tolist(), (self.begins + self.sizes).tolist()))

    @cached_property
    def table(self) -> Numbers:
        """The four side by side, int64 [m, 4]."""
        return np.stack((self.begins, self.sizes, self.firsts, self.blocks), axis=1)

    @property
    def all_blocks(self) -> int:
        """How many there are."""
        return int(self.blocks.sum())
