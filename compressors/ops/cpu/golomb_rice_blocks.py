"""One block of Golomb-Rice coded positions: its parameter, its size, writing and reading it.

See `golomb_rice.py` for the bytes. Nothing here checks lengths or addresses unless it says so.
"""

import math
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from .bits import load64, store64, trailing_zeros

MOST_BITS = 30
"""The largest parameter: that of one update at position 2^31 - 2."""

_FRACTION = 16
_QUAD_FIELD = 14  # four fields of so many bits, behind 7 bits left over, fit 64
_ONE, _TWO = np.uint32(1), np.uint32(2)
_ONE64, _SEVEN, _WHOLE_BYTES, _IN_WORD = np.uint64(1), np.uint64(7), np.uint64(56), np.uint64(63)


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


def _population(typing_context: Any, word: Any) -> Any:
    """How many bits of a uint64 are set, as a uint64."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.ctpop(given[0])

    return types.uint64(types.uint64), generate


_ones: Any = intrinsic(_population)


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
def sum_of_quotients(words, base, b):  # type: ignore[no-untyped-def]
    """The sum of gap >> b over a block; -1 where positions do not ascend.

    Args:
        words: uint32 [count], count >= 1.
        base: int64, the position before the first, -1 if there is none.
        b: the block's parameter.
    """
    shift = np.uint32(b + 1)
    total = np.uint32(_twice_gap(words[0], np.uint32(base << 1)) >> shift)
    disorder = np.uint32(np.int64(words[0] >> _ONE) <= base)
    for i in range(1, words.size):
        total += np.uint32(_twice_gap(words[i], words[i - 1]) >> shift)
        disorder |= np.uint32((words[i] | _ONE) <= (words[i - 1] | _ONE))
    return np.int64(-1) if disorder else np.int64(total)


@njit(nogil=True, cache=True)
def fields_bytes(count, b, signed):  # type: ignore[no-untyped-def]
    """Bytes that the remainders and signs of a block take."""
    return (count * (b + signed) + 7) >> 3


@njit(nogil=True, cache=True)
def _field(word, before, mask, drop):  # type: ignore[no-untyped-def]
    """The remainder above the sign, or alone if `drop` is 1; mask covers twice the remainder."""
    return np.uint64(((_twice_gap(word, before) & mask) | (word & _ONE)) >> drop)


@njit(nogil=True, cache=True)
def _write_fields(words, before, b, signed, out):  # type: ignore[no-untyped-def]
    """Writes a block's remainders and signs to the beginning of out."""
    mask = np.uint32((2 << b) - 2)
    drop = np.uint32(not signed)
    width = np.uint64(b + signed)
    word = used = np.uint64(0)
    byte = i = np.int64(0)
    if width <= _QUAD_FIELD:
        while i + 4 <= words.size:
            w0, w1, w2, w3 = words[i], words[i + 1], words[i + 2], words[i + 3]
            low = _field(w0, before, mask, drop) | _field(w1, w0, mask, drop) << width
            high = _field(w2, w1, mask, drop) | _field(w3, w2, mask, drop) << width
            before = w3
            word |= (low | high << (width + width)) << used
            used += np.uint64(4) * width
            store64(out, byte, word)
            byte += np.int64(used >> np.uint64(3))
            word >>= used & _WHOLE_BYTES
            used &= _SEVEN
            i += 4
    while i < words.size:
        word |= _field(words[i], before, mask, drop) << used
        before = words[i]
        used += width
        store64(out, byte, word)
        byte += np.int64(used >> np.uint64(3))
        word >>= used & _WHOLE_BYTES
        used &= _SEVEN
        i += 1


@njit(nogil=True, cache=True)
def _write_quotients(words, before, b, out):  # type: ignore[no-untyped-def]
    """Writes a block's quotients, in unary, to out, which is zero, from its beginning."""
    shift = np.uint32(b + 1)
    bit = at = word = np.uint64(0)
    for i in range(words.size):
        bit += np.uint64(_twice_gap(words[i], before) >> shift)
        before = words[i]
        now = bit >> np.uint64(6)
        word = (word if now == at else np.uint64(0)) | _ONE64 << (bit & _IN_WORD)
        at = now
        store64(out, np.int64(now << np.uint64(3)), word)
        bit += _ONE64


@njit(nogil=True, cache=True)
def write_block(words, base, b, signed, out):  # type: ignore[no-untyped-def]
    """Writes a block into out: uint8, as long as the block and SPARE bytes."""
    before = np.uint32(base << 1)
    quotients = out[fields_bytes(words.size, b, signed) :]
    _write_fields(words, before, b, signed, out)
    quotients[:] = 0
    _write_quotients(words, before, b, quotients)


@njit(nogil=True, cache=True)
def read_block(body, start, stop, base, last, signed, words):  # type: ignore[no-untyped-def]
    """Reads the block body[start:stop], whatever its bytes are.

    Args:
        body: uint8, with SPARE bytes behind the block, which holds at least `words.size` fields and bits.
        start: int64.
        stop: int64.
        base: int64, the position before the block's first.
        last: int64, the block's last position, at least base + words.size.
        signed: 1 if there are signs, else 0.
        words: uint32 [count], receives the words.

    Returns:
        Whether these are the bytes that `write_block` writes for the words read.
    """
    count = words.size
    b = parameter(last - base, count)
    width = b + signed
    fields = np.int64(count * width)
    quotients = start + fields_bytes(count, b, signed)
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
        ones = _ones(word)
        if ones > np.uint64(count) - i:
            return False
        for _ in range(ones):
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
