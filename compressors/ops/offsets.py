"""Where the symbols and the tables of several parameters stand in arrays that they share."""

from dataclasses import dataclass
from functools import lru_cache

_MULTIPLE = 16
"""Of elements, and of blocks, at which a parameter begins: no kernel meets an odd address."""


@dataclass(frozen=True)
class Offsets:
    """Of each parameter."""

    symbols: tuple[slice, ...]
    tables: tuple[slice, ...]
    """Its blocks."""
    elements: int
    """Length of the symbols' array."""
    blocks: int
    """Length of an array with one number a block."""


def block_length(n: int, block: int) -> int:
    """Elements of a block: `block`, or n where that is 0 or too large. At least 1."""
    return max(1, n if block == 0 else min(block, n))


def block_count(n: int, block: int) -> int:
    """How many blocks n elements make; the last one may be shorter."""
    return -(-n // block_length(n, block))


@lru_cache(256)  # every step asks for the same
def offsets_of(sizes: tuple[int, ...], block: int) -> Offsets:
    """Of parameters of so many elements, in blocks of `block` (0: each is one)."""
    counts = [block_count(n, block) for n in sizes]
    symbols, tables = _side_by_side(sizes), _side_by_side(counts)
    return Offsets(symbols, tables, symbols[-1].stop if sizes else 0, tables[-1].stop if sizes else 0)


def _side_by_side(lengths: "tuple[int, ...] | list[int]") -> tuple[slice, ...]:
    found, begin = [], 0
    for length in lengths:
        found.append(slice(begin, begin + length))
        begin += -(-length // _MULTIPLE) * _MULTIPLE
    return tuple(found)
