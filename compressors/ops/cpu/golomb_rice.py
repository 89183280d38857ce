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

from functools import partial
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from .bits import SPARE
from .golomb_rice_blocks import fields_bytes, parameter, read_block, sum_of_quotients, write_block
from .threads import run_all, shares

BLOCK_LOG2 = 12
"""log2 of how many words the encoder puts into a block. At 10% density, half of that is 0.2% longer."""

BLOCK_LOG2S = (14, 12, 10, 8, 6)
BLOCK_LOG2S_OF_MANY = (14, 10)
"""For more than FEW words: looking at every length would take half as long as writing, and gain little."""
FEW = 2**16

LEAST_LOG2, MOST_LOG2 = 4, 14  # a longer block could pass 65535 bytes
TABLE = 6
_SHARE = 16
"""Blocks that are worth a thread."""

_ONE = np.uint32(1)

Scalar = TypeVar("Scalar", bound=np.generic)
Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]


@njit(nogil=True, cache=True)
def base_of(words, at):  # type: ignore[no-untyped-def]
    """The position before word number `at`."""
    return np.int64(words[at - 1] >> _ONE) if at else np.int64(-1)


@njit(nogil=True, cache=True)
def measure(words, length, signed, first, sizes):  # type: ignore[no-untyped-def]
    """Writes to sizes how many bytes each block of `length` words from number `first` on takes.

    Returns:
        Whether positions ascend.
    """
    for s in range(sizes.size):
        start = (first + s) * length
        block = words[start : start + length]
        base = base_of(words, start)
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
        base = base_of(words, s * length)
        b = parameter(np.int64(block[-1] >> _ONE) - base, block.size)
        size = starts[s + 1] - starts[s]
        write_block(block, base, b, signed, scratch[: size + SPARE])
        out[starts[s] : starts[s + 1]] = scratch[:size]


@njit(nogil=True, cache=True)
def read_blocks(body, length, signed, lasts, starts, first, stop, words):  # type: ignore[no-untyped-def]
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
def check_table(lasts, sizes, n, k, length, signed):  # type: ignore[no-untyped-def]
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


def read_only(array: NDArray[Scalar]) -> NDArray[Scalar]:
    """A contiguous view (or copy) that numba sees as read-only, so that kernels are compiled once."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _shares(blocks: int, threads: int) -> list[tuple[int, int]]:
    return shares(blocks, max(1, min(threads, blocks // _SHARE)))


def _sizes(words: Words, signed: bool, block_log2: int, threads: int) -> NDArray[np.int64]:
    """int64 [blocks], bytes that each block takes."""
    if not LEAST_LOG2 <= block_log2 <= MOST_LOG2:
        raise ValueError(f"blocks of 2^{block_log2} words; {LEAST_LOG2} to {MOST_LOG2} are possible")
    length = 1 << block_log2
    sizes = np.empty(-(-words.size // length), np.int64)
    pieces = [
        partial(measure, words, length, int(signed), start, sizes[start:stop])
        for start, stop in _shares(sizes.size, threads)
    ]
    if not all(run_all(pieces, threads)):
        raise ValueError("positions do not ascend")
    return sizes


def size(words: Words, signed: bool, threads: int = 1, block_log2: int = BLOCK_LOG2) -> int:
    """Bytes of the section, exactly. Arguments and errors as for `encode`."""
    if words.size == 0:
        return 0
    sizes = _sizes(read_only(words), signed, block_log2, threads)
    return 1 + TABLE * sizes.size + int(sizes.sum())


def shortest(words: Words, signed: bool, threads: int = 1) -> tuple[int, int]:
    """The block length that makes the shortest section, of those in BLOCK_LOG2S; the longest of equals.

    Short blocks follow layers of different density more closely, long ones have less to say about themselves.

    Returns:
        The section's bytes, and the logarithm of the block length.
    """
    found, negative_log2 = min(
        (size(words, signed, threads, log2), -log2) for log2 in block_log2s(words.size)
    )
    return found, -negative_log2


def block_log2s(k: int) -> tuple[int, ...]:
    """The block lengths to try for k words."""
    return BLOCK_LOG2S if k <= FEW else BLOCK_LOG2S_OF_MANY


def encode(words: Words, signed: bool, out: Bytes, threads: int = 1, block_log2: int = BLOCK_LOG2) -> None:
    """Writes the section.

    Args:
        words: uint32 [k], position << 1 | sign; positions ascend and are below 2^31 - 1.
        signed: whether signs are written.
        out: uint8, contiguous, exactly as long as `size` says; what it holds does not matter.
        threads: how many share the work; the bytes do not depend on it.
        block_log2: s, 4 to 14.

    Raises:
        ValueError: positions do not ascend, out is of another length, or block_log2 is out of range.
    """
    if words.size == 0:
        return
    words = read_only(words)
    sizes = _sizes(words, signed, block_log2, threads)
    length = 1 << block_log2
    starts = np.concatenate(([1 + TABLE * sizes.size], sizes)).cumsum()
    if out.size != starts[-1]:
        raise ValueError(f"{out.size} bytes are given, the section takes {starts[-1]}")
    blocks = sizes.size
    lasts = np.append(words[length - 1 : -1 : length], words[-1]) >> 1
    out[0] = block_log2
    out[1 : 1 + 4 * blocks] = lasts.astype("<u4").view(np.uint8)
    out[1 + 4 * blocks : starts[0]] = sizes.astype("<u2").view(np.uint8)
    pieces = [
        partial(_write_blocks, words, length, int(signed), starts, first, stop, out)
        for first, stop in _shares(blocks, threads)
    ]
    run_all(pieces, threads)


def _read_table(body: Bytes, k: int) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Words in a block, last positions and sizes, of a body that is long enough for k > 0 words."""
    block_log2 = int(body[0]) if body.size else 0
    if not LEAST_LOG2 <= block_log2 <= MOST_LOG2:
        raise CorruptMessage(f"Golomb-Rice blocks of 2^{block_log2} words, or none, in {body.size} bytes")
    length = 1 << block_log2
    blocks = -(-k // length)
    split, end = 1 + 4 * blocks, 1 + TABLE * blocks
    if body.size < end:
        raise CorruptMessage(f"{body.size} bytes cannot hold {blocks} Golomb-Rice blocks")
    lasts = np.frombuffer(body[1:split].tobytes(), "<u4").astype(np.int64)
    sizes = np.frombuffer(body[split:end].tobytes(), "<u2").astype(np.int64)
    if body.size < end + int(sizes.sum()):
        raise CorruptMessage(f"{body.size} bytes, the Golomb-Rice blocks take {end + int(sizes.sum())}")
    return length, lasts, sizes


def section_bytes(body: Bytes, k: int) -> int:
    """How many bytes the section that `body` (uint8) begins with takes; reads its table alone.

    Args:
        body: may go on behind the section.
        k: words in the section.

    Raises:
        CorruptMessage: there is no such section, or it is longer than the body.
    """
    if k == 0:
        return 0
    _, _, sizes = _read_table(body, k)
    return 1 + TABLE * sizes.size + int(sizes.sum())


def decode(body: Bytes, n: int, k: int, signed: bool, threads: int = 1) -> Words:
    """Reads a section.

    Args:
        body: uint8, the section and nothing else.
        n: positions are below it; at most 2^31 - 1.
        k: how many words there are.
        signed: whether signs were written.
        threads: how many share the work.

    Returns:
        uint32 [k], position << 1 | sign, sign 0 where none was written.

    Raises:
        CorruptMessage: the bytes are not what `encode` writes for any k words with positions below n.
    """
    if k == 0:
        if body.size:
            raise CorruptMessage(f"{body.size} bytes of positions of no element")
        return np.empty(0, np.uint32)
    length, lasts, sizes = _read_table(body, k)
    starts = np.concatenate(([1 + TABLE * sizes.size], sizes)).cumsum()
    if body.size != starts[-1]:
        raise CorruptMessage(f"{body.size} bytes, the Golomb-Rice blocks end at {starts[-1]}")
    if not check_table(lasts, sizes, n, k, length, int(signed)):
        raise CorruptMessage(f"the Golomb-Rice table is not one of {k} ascending positions below {n}")
    body = read_only(body)
    words = np.empty(k, np.uint32)
    pieces = [
        partial(read_blocks, body, length, int(signed), lasts, starts, first, stop, words)
        for first, stop in _shares(sizes.size, threads)
    ]
    if not all(run_all(pieces, threads)):
        raise CorruptMessage("a Golomb-Rice block does not end where its last position and its size say")
    return words
