"""Loops over the elements sent: applying them to a dense array, checking them, bitmaps.

A word is position << 1 | sign. None of these checks its input unless its name says so: readers of messages
check first.
"""

import numpy as np
from numba import njit

from .bits import load64, trailing_zeros
from .rows import floats

_ONE = np.uint32(1)
_LARGEST = np.float32(np.finfo(np.float32).max)


@njit(nogil=True, cache=True)
def add_to_each(rows, words, values):  # type: ignore[no-untyped-def]
    """Adds values to several arrays.

    Args:
        rows: int64 [m, 4]: an array's address and elements, how many words are its, its first position.
        words: uint32, of all.
        values: float32, as many.
    """
    begin = 0
    for i in range(rows.shape[0]):
        end, dense = begin + rows[i, 2], floats(rows[i, 0], rows[i, 1])
        for j in range(begin, end):
            dense[np.int64(words[j] >> _ONE) - rows[i, 3]] += values[j]
        begin = end


@njit(nogil=True, cache=True)
def clear(words, base, dense):  # type: ignore[no-untyped-def]
    """Sets dense (float32 [n]) to 0 at every word's position, which is counted from `base` (int64) on."""
    for word in words:
        dense[np.int64(word >> _ONE) - base] = np.float32(0)


@njit(nogil=True, cache=True)
def check_ascending(words, n):  # type: ignore[no-untyped-def]
    """Whether positions ascend strictly and lie below n."""
    bad = 0
    for i in range(1, words.size):
        bad += (words[i] >> _ONE) <= (words[i - 1] >> _ONE)
    return bad == 0 and (words.size == 0 or np.int64(words[-1] >> _ONE) < n)


@njit(nogil=True, cache=True)
def write_bitmap(words, bits):  # type: ignore[no-untyped-def]
    """Sets the bit of every word's position in bits (uint8, zeroed), lowest bit of a byte first."""
    for word in words:
        position = word >> _ONE
        bits[position >> np.uint32(3)] |= np.uint8(1) << np.uint8(position & np.uint32(7))


@njit(nogil=True, cache=True)
def read_bitmap(bits, words):  # type: ignore[no-untyped-def]
    """Writes position << 1 of every set bit to words while they fit; returns how many are set."""
    count = 0
    for byte in range(0, bits.size, 8):
        left = np.uint64(0)
        if byte + 8 <= bits.size:
            left = load64(bits, byte)
        else:
            for j in range(byte, bits.size):
                left |= np.uint64(bits[j]) << np.uint64(8 * (j - byte))
        while left:
            if count < words.size:
                words[count] = np.uint32((np.uint64(8 * byte) + trailing_zeros(left)) << np.uint64(1))
            count += 1
            left &= left - np.uint64(1)
    return count


@njit(nogil=True, cache=True)
def write_signs(words, bits):  # type: ignore[no-untyped-def]
    """Packs the words' signs into bits (uint8, zeroed), lowest bit of a byte first."""
    for i in range(words.size):
        bits[i >> 3] |= np.uint8(words[i] & _ONE) << np.uint8(i & 7)


@njit(nogil=True, cache=True)
def read_signs(bits, words):  # type: ignore[no-untyped-def]
    """Puts packed signs into the words' lowest bit, which is clear."""
    for i in range(words.size):
        words[i] |= np.uint32((bits[i >> 3] >> np.uint8(i & 7)) & np.uint8(1))


@njit(nogil=True, cache=True)
def count_nonzero(dense):  # type: ignore[no-untyped-def]
    """How many elements are not zero."""
    count = 0
    for i in range(dense.size):
        count += dense[i] != 0
    return count


@njit(nogil=True, cache=True)
def read_dense(dense, words):  # type: ignore[no-untyped-def]
    """Writes the word of every element that is not zero; words is exactly as long as they are many."""
    count = 0
    for i in range(dense.size):
        if dense[i] != 0:
            words[count] = np.uint32(i << 1) | np.uint32(dense[i] < 0)
            count += 1


@njit(nogil=True, cache=True)
def all_zero(dense):  # type: ignore[no-untyped-def]
    """Whether every element is zero; stops at the first that is not."""
    for value in dense:
        if value != 0:
            return False
    return True


@njit(nogil=True, cache=True)
def apply_momentum(rows, momentum, out):  # type: ignore[no-untyped-def]
    """velocity = momentum * velocity + gradient, where that is finite; out receives it wherever.

    Args:
        rows: see `rows.py`; velocities stand instead of residuals.
        momentum: float32.
        out: float32; a row's elements begin at its base.
    """
    for i in range(rows.shape[0]):
        velocity, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        into = out[rows[i, 3] : rows[i, 3] + rows[i, 2]]
        for j in range(velocity.size):
            total = velocity[j] * momentum + gradient[j]
            into[j] = total
            velocity[j] = total if abs(total) <= _LARGEST else velocity[j]
