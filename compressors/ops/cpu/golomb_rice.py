"""Golomb-Rice coded positions: Strom, section 2.5.

The k words are cut into blocks of 2^s words (the last has what is left). Section, little endian:

    1 byte            s
    4 bytes a block   its last position
    2 bytes a block   how many bytes it takes
    the blocks

No words make no bytes. A block codes the gap before each position, the number of positions skipped
since the one before (which, for the first of all, is -1). Its parameter b is not written: it follows
from the mean distance of its positions, hence adapts to layers of different density, see `parameter`.
A block is two runs of bits, lowest bit of a byte first, each filled up to a whole byte with zeros:

    fields            for each word its sign (1 is minus), if there are signs, then gap mod 2^b in b bits
    quotients         for each word floor(gap / 2^b) zeros and a 1

The sum of bits is that of the usual code, whose words stand one after the other. Set apart, fields lie
where their number says, and quotients are found as fast as a word's set bits, so that no word waits
until the length of the one before is known. Blocks are independent: threads share them.
"""

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes
from .bits import SPARE
from .golomb_rice_blocks import fields_bytes, parameter, read_block, sum_of_quotients, write_block
from .threads import run_all, shares

BLOCK_LOG2S = (14, 12, 10, 8, 6)
"""Short blocks follow layers of different density more closely, long ones say less about themselves."""
BLOCK_LOG2S_OF_MANY = (14, 12, 10)
"""For more than FEW words: each up to the first that is not shorter. Looking at every length would take half
as long as writing, and gain little."""
FEW = 2**16

LEAST_LOG2, MOST_LOG2 = 4, 14  # a longer block could pass 65535 bytes
TABLE = 6
_SHARE = 16
"""Blocks that are worth a thread."""

_ONE = np.uint32(1)

Scalar = TypeVar("Scalar", bound=np.generic)
Words = NDArray[np.uint32]


@njit(nogil=True, cache=True)
def _base_of(words, at):  # type: ignore[no-untyped-def]
    """The position before word number `at`."""
    return np.int64(words[at - 1] >> _ONE) if at else np.int64(-1)


@njit(nogil=True, cache=True)
def _measure(words, length, signed, first, sizes):  # type: ignore[no-untyped-def]
    """Writes to sizes how many bytes each block of `length` words from number `first` on takes.

    Returns:
        Whether positions ascend.
    """
    for s in range(sizes.size):
        start = (first + s) * length
        block = words[start : start + length]
        base = _base_of(words, start)
        last = np.int64(block[-1] >> _ONE)
        if last - base < block.size:
            return False
        b = parameter(last - base, block.size)
        quotients = sum_of_quotients(block, base, b)
        if quotients < 0:
            return False
        sizes[s] = fields_bytes(block.size, b, signed) + (quotients + block.size + 7 >> 3)
    return True


@njit(nogil=True, cache=True)
def _write_blocks(words, length, signed, starts, first, stop, out):  # type: ignore[no-untyped-def]
    """Writes blocks first to stop into out[starts[s] : starts[s + 1]]."""
    # Stores of eight bytes pass a block's end: into a scratch, not into what another thread writes.
    scratch = np.empty(np.max(starts[first + 1 : stop + 1] - starts[first:stop]) + SPARE, np.uint8)
    for s in range(first, stop):
        block = words[s * length : (s + 1) * length]
        base = _base_of(words, s * length)
        b = parameter(np.int64(block[-1] >> _ONE) - base, block.size)
        size = starts[s + 1] - starts[s]
        write_block(block, base, b, signed, scratch[: size + SPARE])
        out[starts[s] : starts[s + 1]] = scratch[:size]


@njit(nogil=True, cache=True)
def _read_blocks(body, length, signed, lasts, starts, first, stop, words):  # type: ignore[no-untyped-def]
    """Reads blocks first to stop of body; whether all are valid."""
    good = True
    for s in range(first, stop):
        block = words[s * length : (s + 1) * length]
        base = lasts[s - 1] if s else np.int64(-1)
        start, end = starts[s], starts[s + 1]
        if end + SPARE <= body.size:
            good &= read_block(body, start, end, base, lasts[s], signed, block)
        else:
            padded = np.zeros(end - start + SPARE, np.uint8)
            padded[: end - start] = body[start:end]
            good &= read_block(padded, np.int64(0), end - start, base, lasts[s], signed, block)
    return good


@njit(nogil=True, cache=True)
def _check_table(lasts, sizes, n, k, length, signed):  # type: ignore[no-untyped-def]
    """Whether positions leave room for k words below n, and sizes for their fields and a bit each."""
    base = np.int64(-1)
    for s in range(lasts.size):
        count = min(length, k - s * length)
        if lasts[s] >= n or lasts[s] - base < count:
            return False
        b = parameter(lasts[s] - base, count)
        if sizes[s] < fields_bytes(count, b, signed) + (count + 7 >> 3):
            return False
        base = lasts[s]
    return True


def _read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A contiguous view (or copy) that numba sees as read-only, so that kernels are compiled once."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _shares(blocks: int, threads: int) -> list[tuple[int, int]]:
    return shares(blocks, max(1, min(threads, blocks // _SHARE)))


@dataclass(frozen=True, eq=False)
class RicePlan:
    """What is known of a section before it is written."""

    words: Words
    signed: bool
    block_log2: int
    block_sizes: NDArray[np.int64]
    """int64 [blocks], bytes of each."""

    @property
    def size(self) -> int:
        """Bytes of the section, exactly."""
        blocks = self.block_sizes.size
        return 1 + TABLE * blocks + int(self.block_sizes.sum()) if blocks else 0


def plan(words: Words, signed: bool, threads: int = 1, block_log2: int | None = None) -> RicePlan:
    """Finds the block length that makes the section the shortest; the longest of equals.

    Args:
        words: uint32 [k], position << 1 | sign; positions ascend and are below 2^31 - 1.
        signed: whether signs are written.
        threads: how many share the work; the plan does not depend on it.
        block_log2: s, 4 to 14, instead of the best one.

    Raises:
        ValueError: positions do not ascend, or block_log2 is out of range.
    """
    words = _read_only(words)
    if words.size == 0:
        return RicePlan(words, signed, MOST_LOG2, np.empty(0, np.int64))
    several = BLOCK_LOG2S if words.size <= FEW else BLOCK_LOG2S_OF_MANY
    best: RicePlan | None = None
    for log2 in several if block_log2 is None else (block_log2,):
        found = RicePlan(words, signed, log2, _block_sizes(words, signed, log2, threads))
        if best is None or found.size < best.size:
            best = found
        elif several is BLOCK_LOG2S_OF_MANY:
            break
    assert best is not None
    return best


def _block_sizes(words: Words, signed: bool, block_log2: int, threads: int) -> NDArray[np.int64]:
    if not LEAST_LOG2 <= block_log2 <= MOST_LOG2:
        raise ValueError(f"blocks of 2^{block_log2} words; {LEAST_LOG2} to {MOST_LOG2} are possible")
    length = 1 << block_log2
    sizes = np.empty(-(-words.size // length), np.int64)
    pieces = [
        partial(_measure, words, length, int(signed), start, sizes[start:stop])
        for start, stop in _shares(sizes.size, threads)
    ]
    if not all(run_all(pieces, threads)):
        raise ValueError("positions do not ascend")
    return sizes


def write(planned: RicePlan, out: Bytes, threads: int = 1) -> None:
    """Writes the section to uint8 [size]; the bytes do not depend on the number of threads."""
    words, sizes, length = planned.words, planned.block_sizes, 1 << planned.block_log2
    blocks = sizes.size
    if not blocks:
        return
    starts = np.concatenate(([1 + TABLE * blocks], sizes)).cumsum()
    lasts = np.append(words[length - 1 : -1 : length], words[-1]) >> 1
    out[0] = planned.block_log2
    out[1 : 1 + 4 * blocks] = lasts.astype("<u4").view(np.uint8)
    out[1 + 4 * blocks : starts[0]] = sizes.astype("<u2").view(np.uint8)
    pieces = [
        partial(_write_blocks, words, length, int(planned.signed), starts, first, stop, out)
        for first, stop in _shares(blocks, threads)
    ]
    run_all(pieces, threads)


def read(body: Bytes, n: int, k: int, signed: bool, threads: int = 1) -> tuple[Words, int]:
    """Reads the section that a body begins with.

    Args:
        body: uint8, untrusted; may go on behind the section.
        n: positions are below it; at most 2^31 - 1.
        k: how many words there are.
        signed: whether signs were written.
        threads: how many share the work.

    Returns:
        uint32 [k], position << 1 | sign, sign 0 where none was written; and bytes of the section.

    Raises:
        CorruptMessage: the bytes are not what `write` makes of any k words with positions below n.
    """
    if k == 0:
        return np.empty(0, np.uint32), 0
    block_log2 = int(body[0]) if body.size else 0
    if not LEAST_LOG2 <= block_log2 <= MOST_LOG2:
        raise CorruptMessage(f"positions: Golomb-Rice blocks of 2^{block_log2} words, or none at all")
    length = 1 << block_log2
    blocks = -(-k // length)
    split, end = 1 + 4 * blocks, 1 + TABLE * blocks
    if body.size < end or 8 * body.size < k:  # a word takes a bit at least: no room is made for more
        raise CorruptMessage(f"positions: {body.size} bytes cannot hold {k} of them in Golomb-Rice code")
    lasts = np.frombuffer(body[1:split].tobytes(), "<u4").astype(np.int64)
    sizes = np.frombuffer(body[split:end].tobytes(), "<u2").astype(np.int64)
    starts = np.concatenate(([end], sizes)).cumsum()
    if body.size < starts[-1]:
        raise CorruptMessage(f"positions: {body.size} bytes, the Golomb-Rice blocks take {starts[-1]}")
    if not _check_table(lasts, sizes, n, k, length, int(signed)):
        raise CorruptMessage(f"positions: the Golomb-Rice table is not one of {k} ascending ones below {n}")
    section, words = _read_only(body[: starts[-1]]), np.empty(k, np.uint32)
    pieces = [
        partial(_read_blocks, section, length, int(signed), lasts, starts, first, stop, words)
        for first, stop in _shares(blocks, threads)
    ]
    if not all(run_all(pieces, threads)):
        raise CorruptMessage(
            "positions: a Golomb-Rice block does not end where its last position and its size say"
        )
    return words, int(starts[-1])
