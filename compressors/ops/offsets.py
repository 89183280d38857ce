"""Where the symbols and the tables of several parameters stand in arrays that they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

_MULTIPLE = 16
"""Of elements, and of blocks, at which a parameter begins: no kernel meets an odd address."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Offsets:
    """Of each parameter; int64 [parameters]."""

    begins: Numbers
    """Its first symbol."""
    sizes: Numbers
    """How many symbols."""
    firsts: Numbers
    """Its first block."""
    blocks: Numbers
    """How many blocks."""

    @cached_property
    def symbols(self) -> tuple[slice, ...]:
        """Its symbols."""
        return _slices(self.begins, self.sizes)

    @cached_property
    def tables(self) -> tuple[slice, ...]:
        """Its blocks."""
        return _slices(self.firsts, self.blocks)

    @cached_property
    def table(self) -> Numbers:
        """The four side by side, int64 [parameters, 4]."""
        return np.stack((self.begins, self.sizes, self.firsts, self.blocks), axis=1)

    @cached_property
    def all_symbols(self) -> int:
        """Length of the symbols' array."""
        return _end(self.begins, self.sizes)

    @cached_property
    def all_blocks(self) -> int:
        """Length of an array with one number a block."""
        return _end(self.firsts, self.blocks)


def block_length(n: int, block: int) -> int:
    """Elements of a block: `block`, or n where that is 0 or too large. At least 1."""
    return max(1, n if block == 0 else min(block, n))


def block_count(n: int, block: int) -> int:
    """How many blocks n elements make; the last one may be shorter."""
    return -(-n // block_length(n, block))


@lru_cache(256)  # every step asks for the same
def offsets_of(sizes: tuple[int, ...], block: int, multiple: int = _MULTIPLE) -> Offsets:
    """Of parameters of so many elements, in blocks of `block` (0: each is one).

    Args:
        sizes: elements of each parameter.
        block: elements of a block.
        multiple: of what a parameter begins at.
    """
    counts = [block_count(n, block) for n in sizes]
    symbols, tables = _side_by_side(sizes, multiple), _side_by_side(counts, multiple)
    return Offsets(symbols, np.array(sizes, np.int64), tables, np.array(counts, np.int64))


def _side_by_side(lengths: Sequence[int], multiple: int) -> Numbers:
    found, begin = np.empty(len(lengths), np.int64), 0
    for number, length in enumerate(lengths):
        found[number] = begin
        begin += -(-length // multiple) * multiple
    return found


def _slices(begins: Numbers, lengths: Numbers) -> tuple[slice, ...]:
    return tuple(map(slice, begins.tolist(), (begins + lengths).tolist()))


def _end(begins: Numbers, lengths: Numbers) -> int:
    return int(begins[-1] + lengths[-1]) if begins.size else 0
