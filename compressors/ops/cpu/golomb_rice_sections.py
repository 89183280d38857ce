"""Golomb-Rice sections of many messages in one call: measured, written, read. `golomb_rice.py` has the bytes.

A bucket has a message for each tau, and most are short: a call for each would take longer than its work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..faults import fault
from .bits import SPARE
from .golomb_rice import (
    BLOCK_LOG2S,
    FEW,
    LEAST_LOG2,
    MOST_LOG2,
    TABLE,
    base_of,
    block_log2s,
    check_table,
    measure,
    read_blocks,
    read_only,
)
from .golomb_rice_blocks import parameter, write_block

Words = NDArray[np.uint32]

_BEGIN, _COUNT, _FIRST, _LOG2, _BLOCKS, SIZE = range(6)
_ONE = np.uint32(1)


@dataclass(frozen=True)
class Sections:
    """Sections that are measured, and can be written.

    Attributes:
        words: uint32, those of all sections, one after the other.
        signed: whether signs are written.
        plans: int64 [m, 6]: where a section's words begin and how many there are; where the sizes of its
            blocks stand, log2 of a block's words, how many blocks; its bytes.
        block_sizes: int64, bytes of every block.
    """

    words: Words
    signed: bool
    plans: NDArray[np.int64]
    block_sizes: NDArray[np.int64]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each section, exactly."""
        found: list[int] = self.plans[:, SIZE].tolist()
        return found

    def write(self, which: Sequence[int], out: NDArray[np.uint8], begins: Sequence[int]) -> None:
        """Writes some of the sections.

        Args:
            which: their numbers.
            out: uint8; up to SPARE bytes behind a section are overwritten, as far as there are any.
            begins: where each section begins in it, ascending.
        """
        plans = self.plans if len(which) == len(self.plans) else self.plans[np.array(which, np.int64)]
        _write(self.words, plans, int(self.signed), self.block_sizes, np.array(begins, np.int64), out)


def measured(words: Sequence[Words], signed: bool) -> Sections:
    """The block lengths that make the shortest sections; see `golomb_rice.shortest`.

    Args:
        words: uint32 [k] of each section, contiguous: position << 1 | sign; positions ascend and are below
            2^31 - 1.
        signed: whether signs are written.

    Raises:
        ValueError: positions do not ascend.
    """
    joined = words[0] if len(words) == 1 else np.concatenate(words)
    return measured_together(joined, np.array([each.size for each in words], np.int64), signed)


def measured_together(joined: Words, counts: NDArray[np.int64], signed: bool) -> Sections:
    """The same of sections whose words, one after the other, stand in one array.

    Args:
        joined: uint32, contiguous.
        counts: int64 [m], words of each section.
        signed: whether signs are written.

    Raises:
        ValueError: positions do not ascend.
    """
    joined = read_only(joined)
    plans = np.empty((counts.size, 6), np.int64)
    plans[:, _COUNT] = counts
    block_sizes = np.empty((joined.size >> min(BLOCK_LOG2S)) + counts.size, np.int64)
    if not _measure_all(joined, plans, int(signed), FEW, _LOG2S, block_sizes):
        raise ValueError("positions do not ascend")
    return Sections(joined, signed, plans, block_sizes)


_LOG2S = np.zeros((2, len(BLOCK_LOG2S)), np.int64)
"""Block lengths to try: of few words, then of many; 0 for none."""
_LOG2S[0] = BLOCK_LOG2S
_LOG2S[1, : len(block_log2s(1 << 30))] = block_log2s(1 << 30)


@njit(nogil=True, cache=True)
def _measure_all(joined, plans, signed, few, log2s, block_sizes):  # type: ignore[no-untyped-def]
    """Fills in what plans do not hold yet, all but the counts, and block_sizes; whether positions ascend."""
    begin = first = np.int64(0)
    for i in range(plans.shape[0]):
        k = plans[i, 1]
        plans[i, 0], plans[i, 2], plans[i, 3], plans[i, 4], plans[i, 5] = begin, first, 0, 0, 0
        if k == 0:
            continue
        words = joined[begin : begin + k]
        begin += k
        best = np.int64(-1)
        for log2 in log2s[1 if k > few else 0]:
            if log2 == 0:
                break
            blocks = -(-k >> log2)
            sizes = np.empty(blocks, np.int64)
            if not measure(words, np.int64(1) << log2, signed, np.int64(0), sizes):
                return False
            size = 1 + TABLE * blocks + sizes.sum()
            if best < 0 or size < best:
                best = size
                plans[i, 3], plans[i, 4], plans[i, 5] = log2, blocks, size
                block_sizes[first : first + blocks] = sizes
        first += plans[i, 4]
    return True


@njit(nogil=True, cache=True)
def _write(joined, plans, signed, block_sizes, begins, out):  # type: ignore[no-untyped-def]
    padded = np.empty(0, np.uint8)
    for i in range(plans.shape[0]):
        k, first, log2, blocks = plans[i, 1], plans[i, 2], plans[i, 3], plans[i, 4]
        if k == 0:
            continue
        words, length = joined[plans[i, 0] : plans[i, 0] + k], np.int64(1) << log2
        at = begins[i]
        out[at] = log2
        lasts, sizes = at + 1, at + 1 + 4 * blocks
        begin = at + 1 + TABLE * blocks
        for s in range(blocks):
            block = words[s * length : (s + 1) * length]
            last, size = block[-1] >> _ONE, block_sizes[first + s]
            for j in range(4):
                out[lasts + 4 * s + j] = np.uint8(last >> np.uint32(8 * j))
            out[sizes + 2 * s], out[sizes + 2 * s + 1] = np.uint8(size), np.uint8(size >> 8)
            base = base_of(words, s * length)
            b = parameter(np.int64(last) - base, block.size)
            if begin + size + SPARE <= out.size:
                write_block(block, base, b, signed, out[begin : begin + size + SPARE])
            else:
                if padded.size < size + SPARE:
                    padded = np.empty(size + SPARE, np.uint8)
                write_block(block, base, b, signed, padded[: size + SPARE])
                out[begin : begin + size] = padded[:size]
            begin += size


def read(
    bodies: Sequence[NDArray[np.uint8]], elements: Sequence[int], counts: Sequence[int], signed: bool
) -> list[tuple[Words, int]]:
    """Reads the sections that bodies begin with.

    Args:
        bodies: uint8, untrusted.
        elements: n of each; positions are below it.
        counts: k of each.
        signed: whether signs were written.

    Returns:
        For each its words, uint32 [k], position << 1 | sign (0 where none was written), and its bytes.

    Raises:
        CorruptMessage: about the first of them that is not valid.
    """
    sizes = [body.size for body in bodies]
    for size, k in zip(sizes, counts, strict=True):
        if k > 8 * size:  # a word takes a bit at least: no room is made for more
            raise CorruptMessage(f"{size} bytes cannot hold a Golomb-Rice section of {k} elements")
    begins = [0, *accumulate(sizes)][: len(sizes)]
    table = np.array((begins, sizes, elements, counts, counts), np.int64).T.copy()
    joined = read_only(bodies[0] if len(bodies) == 1 else np.concatenate(bodies))
    words = np.empty(sum(counts), np.uint32)
    good = read_sections(joined, table, int(signed), words)
    if good < len(bodies):
        raise fault(8 if table[good, 4] == 0 else 16)
    ends = list(accumulate(counts))
    used: list[int] = table[:, 4].tolist()
    return [(words[end - k : end], each) for end, k, each in zip(ends, counts, used, strict=True)]


@njit(nogil=True, cache=True)
def read_sections(joined, bodies, signed, words):  # type: ignore[no-untyped-def]
    """Reads the sections that bodies begin with, one after the other, up to the first that is not valid.

    Args:
        joined: uint8, all bodies.
        bodies: int64 [m, 5]: where a body begins, its bytes, n, k, and room for the bytes of its section.
        signed: 1 if signs were written, else 0.
        words: uint32, as long as all k together.

    Returns:
        How many sections are valid. Of the one that is not, the room says 0 where its table is wrong.
    """
    done = 0
    for i in range(bodies.shape[0]):
        size, n, k = bodies[i, 1], bodies[i, 2], bodies[i, 3]
        bodies[i, 4] = 0
        if k == 0:
            continue
        body = joined[bodies[i, 0] : bodies[i, 0] + size]
        log2 = np.int64(body[0]) if size else np.int64(0)
        if not LEAST_LOG2 <= log2 <= MOST_LOG2:
            return i
        length = np.int64(1) << log2
        blocks = -(-k >> log2)
        table = 1 + TABLE * blocks
        if size < table:
            return i
        lasts, sizes = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
        starts = np.empty(blocks + 1, np.int64)
        starts[0] = table
        for s in range(blocks):
            for j in range(4):
                lasts[s] |= np.int64(body[1 + 4 * s + j]) << (8 * j)
            at = 1 + 4 * blocks + 2 * s
            sizes[s] = np.int64(body[at]) | np.int64(body[at + 1]) << 8
            starts[s + 1] = starts[s] + sizes[s]
        if size < starts[blocks] or not check_table(lasts, sizes, n, k, length, signed):
            return i
        section = body[: starts[blocks]]
        bodies[i, 4] = starts[blocks]
        if not read_blocks(
            section, length, signed, lasts, starts, np.int64(0), blocks, words[done : done + k]
        ):
            return i
        done += k
    return bodies.shape[0]
