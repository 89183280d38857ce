"""Golomb-Rice coded positions (Strom, section 2.5; docs/reference/messages.md has the bytes).

A block codes the gap before each position, with a parameter that follows from the mean distance of its
positions, hence adapts to layers of different density. The sum of bits is that of the usual code, whose words
stand one after the other. Set apart, fields lie where their number says, and quotients are found as fast as a
word's set bits, so that no word waits until the length of the one before is known.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes, Words, readonly
from .bits import SPARE, Section, load64, ones, store64, trailing_zeros
from .threads import LEAST_SHARE, run_shares

BLOCK_LOG2S = (14, 12, 10, 8, 6)
"""Short blocks follow layers of different density more closely, long ones say less about themselves."""
BLOCK_LOG2S_OF_MANY = (14, 12, 10)
"""For more than FEW words: each up to the first that is not shorter. Looking at every length would take half
as long as writing, and gain little."""
FEW = 2**16
_MANY = 2**21
"""Words below which threads measure no faster than one of them, which adds up eight at a time."""

LEAST_LOG2, MOST_LOG2 = 4, 14  # a longer block could pass 65535 bytes
TABLE = 6

MOST_BITS = 30
"""The largest parameter: that of one update at position 2^31 - 2."""

_FRACTION = 16
_ONE, _TWO = np.uint32(1), np.uint32(2)
_ONE64, _SEVEN, _WHOLE_BYTES, _IN_WORD = np.uint64(1), np.uint64(7), np.uint64(56), np.uint64(63)


# A block: nothing here checks lengths or addresses unless it says so


def _limits() -> list[int]:
    """The largest mean distance of positions that each parameter is for, times 2^16, rounded down.

    Kiely (2004): b = ceil(log2(ln(phi - 1) / ln(1 - p))) is the least b with 1 / p no more than
    1 / (1 - (phi - 1)^(2^-b)). Integer square roots give the same limits on every machine.
    """
    bits = 128
    root = (math.isqrt(5 << 2 * bits) - (1 << bits)) >> 1
    limits = []
    for _ in range(MOST_BITS + 1):
        limits.append((1 << (bits + _FRACTION)) // ((1 << bits) - root))
        root = math.isqrt(root << bits)
    return limits


LIMITS = np.array(_limits(), np.int64)


@njit(nogil=True, cache=True)
def parameter(span, count):  # type: ignore[no-untyped-def]
    """The b for `count` positions of which the last is `span` (below 2^31) behind the last one before."""
    b = 0
    while b < MOST_BITS and span << _FRACTION > count * LIMITS[b]:
        b += 1
    return b


@njit(nogil=True, cache=True)
def _twice_gap(word, before):  # type: ignore[no-untyped-def]
    """Twice the number of positions skipped between two words; exact in 32 bits, from -1 on too."""
    return np.uint32((word | _ONE) - (before | _ONE) - _TWO)


@njit(nogil=True, cache=True)
def _sum_of_quotients(words, base, b):  # type: ignore[no-untyped-def]
    """The sum of gap >> b over a block, uint32 [at least 1]; -1 where positions do not ascend from `base`."""
    shift = np.uint32(b + 1)
    total = np.uint32(_twice_gap(words[0], np.uint32(base << 1)) >> shift)
    disorder = np.uint32(np.int64(words[0] >> _ONE) <= base)
    for i in range(1, words.size):
        total += np.uint32(_twice_gap(words[i], words[i - 1]) >> shift)
        disorder |= np.uint32((words[i] | _ONE) <= (words[i - 1] | _ONE))
    return np.int64(-1) if disorder else np.int64(total)


@njit(nogil=True, cache=True)
def _fields_bytes(count, b, signed):  # type: ignore[no-untyped-def]
    """Bytes that the remainders and signs of a block take."""
    return (count * (b + signed) + 7) >> 3


@njit(nogil=True, cache=True)
def _write_block(words, base, b, signed, out):  # type: ignore[no-untyped-def]
    """Writes a block into out: uint8, as long as the block and SPARE bytes."""
    mask, drop, width = np.uint32((2 << b) - 2), np.uint32(not signed), np.uint64(b + signed)
    before = np.uint32(base << 1)
    word = used = np.uint64(0)
    byte = np.int64(0)
    for i in range(words.size):
        # The remainder above the sign, or alone.
        field = ((_twice_gap(words[i], before) & mask) | (words[i] & _ONE)) >> drop
        word |= np.uint64(field) << used
        before = words[i]
        used += width
        store64(out, byte, word)
        byte += np.int64(used >> np.uint64(3))
        word >>= used & _WHOLE_BYTES
        used &= _SEVEN
    quotients = out[_fields_bytes(words.size, b, signed) :]
    before, shift = np.uint32(base << 1), np.uint32(b + 1)
    quotients[:] = 0  # they are written in unary
    bit = at = word = np.uint64(0)
    for i in range(words.size):
        bit += np.uint64(_twice_gap(words[i], before) >> shift)
        before = words[i]
        now = bit >> np.uint64(6)
        word = (word if now == at else np.uint64(0)) | _ONE64 << (bit & _IN_WORD)
        at = now
        store64(quotients, np.int64(now << np.uint64(3)), word)
        bit += _ONE64


@njit(nogil=True, cache=True)
def _read_block(body, start, stop, base, last, signed, words):  # type: ignore[no-untyped-def]
    """Reads the block body[start:stop], whatever its bytes are, into words, uint32 [count].

    SPARE bytes lie behind the block, which holds at least `count` fields and bits; `base` is the position
    before its first, `last` its last one, at least base + count.

    Returns:
        Whether these are the bytes that `_write_block` writes for the words read.
    """
    count = words.size
    b = parameter(last - base, count)
    width = b + signed
    fields = np.int64(count * width)
    quotients = start + _fields_bytes(count, b, signed)
    if fields & 7 and body[quotients - 1] >> np.uint8(fields & 7):
        return False
    shift, step, lift = np.uint64(b + 1), np.uint64(width), np.uint64(1 - signed)
    mask = (_ONE64 << step) - _ONE64
    at = np.uint64(8 * start)
    # Twice the position without the quotients; wraps around at the beginning.
    low = np.uint64(2 * base)
    twice = zeros = bit = np.uint64(0)
    i = np.uint64(0)
    for byte in range(quotients, stop, 8):
        word = load64(body, np.int64(byte))
        if stop - byte < 8:
            word &= (_ONE64 << np.uint64(8 * (stop - byte))) - _ONE64
        many = ones(word)
        if many > np.uint64(count) - i:
            return False
        for _ in range(many):
            field = (load64(body, np.int64(at >> np.uint64(3))) >> (at & _SEVEN) & mask) << lift
            at += step
            sign = field & _ONE64
            low += field - sign + np.uint64(2)
            zeros = bit + trailing_zeros(word) - i
            twice = low + (zeros << shift)
            words[i] = np.uint32(twice | sign)
            word &= word - _ONE64
            i += _ONE64
        bit += np.uint64(64)
    ends = quotients + np.int64((zeros + i + _SEVEN) >> np.uint64(3))
    return i == np.uint64(count) and twice == np.uint64(2 * last) and ends == stop


# All blocks


@njit(nogil=True, cache=True)
def _base_of(words, at):  # type: ignore[no-untyped-def]
    """The position before word number `at`."""
    return np.int64(words[at - 1] >> _ONE) if at else np.int64(-1)


@njit(nogil=True, cache=True)
def _measure(words, length, signed, sizes, low, high):  # type: ignore[no-untyped-def]
    """Writes to sizes[low:high] how many bytes blocks of `length` words take; whether positions ascend."""
    for s in range(low, high):
        block, base = words[s * length : (s + 1) * length], _base_of(words, s * length)
        last = np.int64(block[-1] >> _ONE)
        if last - base < block.size:
            return False
        b = parameter(last - base, block.size)
        quotients = _sum_of_quotients(block, base, b)
        if quotients < 0:
            return False
        sizes[s] = _fields_bytes(block.size, b, signed) + (quotients + block.size + 7 >> 3)
    return True


@njit(nogil=True, cache=True)
def _write_blocks(words, length, signed, starts, out, low, high):  # type: ignore[no-untyped-def]
    """Writes blocks number `low` up to `high`, block s to out[starts[s]:starts[s + 1]]."""
    room = np.empty(starts[high] - starts[low] + SPARE, np.uint8)  # a block is written SPARE bytes further
    for s in range(low, high):
        block, base = words[s * length : (s + 1) * length], _base_of(words, s * length)
        b = parameter(np.int64(block[-1] >> _ONE) - base, block.size)
        _write_block(
            block, base, b, signed, room[starts[s] - starts[low] : starts[s + 1] - starts[low] + SPARE]
        )
    out[starts[low] : starts[high]] = room[: starts[high] - starts[low]]


@njit(nogil=True, cache=True)
def _read_blocks(body, length, signed, lasts, starts, words, low, high):  # type: ignore[no-untyped-def]
    """Reads blocks `low` up to `high` of body, which ends in SPARE bytes more; whether they are valid."""
    good = True
    for s in range(low, high):
        block = words[s * length : (s + 1) * length]
        base = lasts[s - 1] if s else np.int64(-1)
        good &= _read_block(body, starts[s], starts[s + 1], base, lasts[s], signed, block)
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
        if sizes[s] < _fields_bytes(count, b, signed) + (count + 7 >> 3):
            return False
        base = lasts[s]
    return True


def plan(words: Words, signed: bool, threads: int = 1) -> Section:
    """Finds the block length that makes the section the shortest; the longest of equals.

    Words are uint32 [k], position << 1 | sign, positions below 2^31 - 1. Threads do not change the bytes.

    Raises:
        ValueError: positions do not ascend.
    """
    several = BLOCK_LOG2S if words.size <= FEW else BLOCK_LOG2S_OF_MANY
    best: Section | None = None
    for log2 in several:
        if best is not None and words.size <= 1 << log2:
            continue  # the same block, which all words are in
        coded = in_blocks(words, signed, log2, threads)
        if best is None or coded.size < best.size:
            best = coded
        elif several is BLOCK_LOG2S_OF_MANY:
            break
    assert best is not None
    return best


def in_blocks(words: Words, signed: bool, block_log2: int, threads: int = 1) -> Section:
    """The section in blocks of 2^block_log2 words."""
    words, length = readonly(words), 1 << block_log2
    sizes = np.empty(-(-words.size // length), np.int64)
    measure = partial(_measure, words, length, int(signed), sizes)
    if not _shared(sizes.size, length, threads if words.size >= _MANY else 1, measure):
        raise ValueError("positions do not ascend")
    size = 1 + TABLE * sizes.size + int(sizes.sum()) if sizes.size else 0
    return Section(size, partial(_write, words, signed, block_log2, sizes, threads))


def _shared(blocks: int, length: int, threads: int, kernel: Callable[[int, int], bool | None]) -> bool:
    """Whether a kernel over blocks, some of them for a thread, never says that it is not so."""
    return False not in run_shares(kernel, blocks, threads, least=max(1, LEAST_SHARE // length))


def _write(
    words: Words, signed: bool, block_log2: int, sizes: NDArray[np.int64], threads: int, out: Bytes
) -> None:
    length, blocks = 1 << block_log2, sizes.size
    if not blocks:
        return
    starts = np.concatenate(([1 + TABLE * blocks], sizes)).cumsum()
    lasts = np.append(words[length - 1 : -1 : length], words[-1]) >> 1
    out[0] = block_log2
    out[1 : 1 + 4 * blocks] = lasts.astype("<u4").view(np.uint8)
    out[1 + 4 * blocks : starts[0]] = sizes.astype("<u2").view(np.uint8)
    kernel = partial(_write_blocks, words, length, int(signed), starts, out)
    _shared(blocks, length, threads, kernel)


def read(body: Bytes, n: int, k: int, signed: bool, threads: int = 1) -> tuple[Words, int]:
    """Reads the section that an untrusted body, uint8, begins with: k words of positions below n.

    Returns:
        uint32 [k], position << 1 | sign, sign 0 where none was written; and bytes of the section.

    Raises:
        CorruptMessage: the bytes are not what `plan` writes of any k words with positions below n.
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
    section, words = np.append(body[: starts[-1]], np.zeros(SPARE, np.uint8)), np.empty(k, np.uint32)
    kernel = partial(_read_blocks, section, length, int(signed), lasts, starts, words)
    if not _shared(blocks, length, threads, kernel):
        raise CorruptMessage(
            "positions: a Golomb-Rice block does not end where its last position and its size say"
        )
    return words, int(starts[-1])
