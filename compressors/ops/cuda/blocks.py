"""How the quantizing passes share out elements among blocks of threads; see blockwise.cuh."""

from typing import NamedTuple

from ..segments import block_count, block_length

PIECE = 4096
"""Elements that a block of threads works on, at most."""
_ITEMS = 16


class Grid(NamedTuple):
    """A launch over n elements in blocks."""

    block: int
    """Elements of a block; the last one may be shorter."""
    blocks: int
    launched: int
    """Blocks of threads: one for each piece of a block of elements."""
    threads: int

    @property
    def whole(self) -> bool:
        """Whether a block of elements is one piece."""
        return self.block <= PIECE


def lay_out(n: int, block: int) -> Grid:
    """The grid over n elements in blocks of `block`, 0 for one block: 16 elements a thread."""
    length, blocks = block_length(n, block), block_count(n, block)
    warps = -(-min(length, PIECE) // (_ITEMS * 32))
    return Grid(length, blocks, blocks * -(-length // PIECE), 32 * warps)


def symbol_size(bits: int) -> int:
    """Bits of the integers that symbols of so many bits lie in."""
    return 8 if bits <= 8 else 16
