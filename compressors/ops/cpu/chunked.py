"""The k largest magnitudes of every chunk on the CPU, and the packing of their indices.

A chunk lies in the first-level cache once its magnitudes are taken, and counting there what reaches
a magnitude costs a fraction of reading it. So the cut, the magnitude from which on to send, is
searched by counting: from the last chunk's cut outward, then by halves. Then the fused threshold pass
runs over the chunk. What is sent does not depend on where the search began.

The packing is SparseLoCo's (arXiv 2508.15706): log2(chunk) bits for an index within its chunk.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from . import avx512, portable
from .rows import Rows, floats, table
from .threshold import PassResult, RowsResult

LARGEST_CHUNK = 1 << 16

_HAS_AVX512 = avx512.supported()
_LARGEST = np.float32(np.finfo(np.float32).max)
_BROKEN = np.float32(-1)
_ZERO = np.float32(0)
_INFINITE_KEY = 0x7F800000
_FIRST_STEP = 1 << 18
"""About 2% of a magnitude: what neighbouring chunks' cuts differ by when some forty are sent of each."""


@njit(nogil=True, cache=True)
def _take_magnitudes(residual, gradient, magnitudes):  # type: ignore[no-untyped-def]
    """Writes |residual + gradient|, and a negative number where that is not finite."""
    for j in range(residual.size):
        magnitude = abs(residual[j] + gradient[j])
        magnitudes[j] = magnitude if magnitude <= _LARGEST else _BROKEN


@njit(nogil=True, cache=True)
def _reaching(keys, cut):  # type: ignore[no-untyped-def]
    count = np.uint32(0)
    for j in range(keys.size):
        # The cast keeps the sum in 32-bit lanes; numba would widen it.
        count = np.uint32(count + np.uint32(keys[j] >= cut))
    return np.int64(count)


@njit(nogil=True, cache=True)
def _find_cut(keys, keep, guess):  # type: ignore[no-untyped-def]
    """The key from which on to send: `keep` keys reach it, or more if some are equal to it.

    Args:
        keys: int32 [length], the bits of magnitudes, which order as the magnitudes do; negative keys
            do not count.
        keep: keys wanted; where fewer are greater than 0, the cut is 0.
        guess: where to begin.
    """
    if keep >= keys.size:
        return 0
    low, high, step = 0, _INFINITE_KEY, _FIRST_STEP  # enough reach low, or all; too few reach high
    probe = min(max(guess, 1), high - 1)
    while high - low > 1:
        count = _reaching(keys, np.int32(probe))
        if count == keep:
            return probe
        if count > keep:
            low = probe
        else:
            high = probe
        probe = low + (high - low) // 2
        if high == _INFINITE_KEY:
            probe = min(probe, low + step)
        elif low == 0:
            probe = max(probe, high - step)
        step *= 2
    return low


@njit(nogil=True, cache=True)
def _trim(residual, tau, keep, base, words, values, start, stop, tally):  # type: ignore[no-untyped-def]
    """Puts back what was sent of one chunk beyond `keep`: the last of those equal to tau."""
    ties = keep
    for i in range(start, stop):
        ties -= abs(values[i]) > tau
    sent = start
    for i in range(start, stop):
        word, value = words[i], values[i]
        if abs(value) == tau:
            if ties == 0:
                residual[np.int64(word >> np.uint32(1)) - base] = value
                tally[0] += np.float64(value) * np.float64(value)
                continue
            ties -= 1
        words[sent], values[sent] = word, value
        sent += 1
    return sent


@njit(nogil=True, cache=True)
def _fill_up(residual, gradient, zeros, base, words, values, sent, tally):  # type: ignore[no-untyped-def]
    """Sends all of one chunk but zeros, and of those the first `zeros`, which the threshold pass cannot."""
    for j in range(residual.size):
        a = residual[j] + gradient[j]
        if abs(a) <= _LARGEST:
            if a != _ZERO or zeros > 0:
                words[sent] = np.uint32((base + j) << 1) | np.uint32(a < _ZERO)
                values[sent] = a + _ZERO  # -0.0 + 0.0 is 0.0: sign and word agree
                sent += 1
                zeros -= a == _ZERO
                a = _ZERO
            residual[j] = a
        else:
            tally[0] += np.float64(residual[j]) * np.float64(residual[j])
            tally[1] += 1
    return sent


# Two functions and not one that takes the pass: where AVX-512 is missing, the first does not compile.


@njit(nogil=True, cache=True)
def _avx512_pass(  # type: ignore[no-untyped-def]
    residual, gradient, chunk, keep, magnitudes, base, words, values, sent, tally
):
    guess = 0
    keys = magnitudes.view(np.int32)
    for low in range(0, residual.size, chunk):
        r, g = residual[low : low + chunk], gradient[low : low + chunk]
        _take_magnitudes(r, g, magnitudes)
        cut = _find_cut(keys[: r.size], keep, guess)
        if cut == 0:
            zeros = keep - _reaching(keys[: r.size], np.int32(1))
            sent = _fill_up(r, g, zeros, base + low, words, values, sent, tally)
            continue
        guess = cut
        tau = np.int32(cut).view(np.float32)
        done = r.size - r.size % avx512.LANES
        stop = avx512.wgt(r, g, done, tau, base + low, words, values, sent, tally)
        stop = portable.wgt(r, g, done, tau, base + low, words, values, stop, tally)
        if stop - sent > keep:
            stop = _trim(r, tau, keep, base + low, words, values, sent, stop, tally)
        sent = stop
    return sent


@njit(nogil=True, cache=True)
def _portable_pass(  # type: ignore[no-untyped-def]
    residual, gradient, chunk, keep, magnitudes, base, words, values, sent, tally
):
    guess = 0
    keys = magnitudes.view(np.int32)
    for low in range(0, residual.size, chunk):
        r, g = residual[low : low + chunk], gradient[low : low + chunk]
        _take_magnitudes(r, g, magnitudes)
        cut = _find_cut(keys[: r.size], keep, guess)
        if cut == 0:
            zeros = keep - _reaching(keys[: r.size], np.int32(1))
            sent = _fill_up(r, g, zeros, base + low, words, values, sent, tally)
            continue
        guess = cut
        tau = np.int32(cut).view(np.float32)
        stop = portable.wgt(r, g, 0, tau, base + low, words, values, sent, tally)
        if stop - sent > keep:
            stop = _trim(r, tau, keep, base + low, words, values, sent, stop, tally)
        sent = stop
    return sent


@njit(nogil=True, cache=True)
def _avx512_rows(rows, chunk, keep, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    magnitudes = np.empty(chunk, np.float32)
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        base, tally = rows[i, 3], tallies[i]
        sent = _avx512_pass(residual, gradient, chunk, keep, magnitudes, base, words, values, sent, tally)
        ends[i] = sent


@njit(nogil=True, cache=True)
def _portable_rows(rows, chunk, keep, words, values, sent, ends, tallies):  # type: ignore[no-untyped-def]
    magnitudes = np.empty(chunk, np.float32)
    for i in range(rows.shape[0]):
        residual, gradient = floats(rows[i, 0], rows[i, 2]), floats(rows[i, 1], rows[i, 2])
        base, tally = rows[i, 3], tallies[i]
        sent = _portable_pass(residual, gradient, chunk, keep, magnitudes, base, words, values, sent, tally)
        ends[i] = sent


def _check(chunk: int, keep: int) -> None:
    if not 2 <= chunk <= LARGEST_CHUNK or chunk & (chunk - 1):
        raise ValueError(f"chunk must be a power of two, 2 to {LARGEST_CHUNK}, not {chunk}")
    if not 0 <= keep <= chunk:
        raise ValueError(f"keep must be 0 to chunk = {chunk}, not {keep}")


def chunked_pass(
    residual: NDArray[np.float32],
    gradient: NDArray[np.float32],
    chunk: int,
    keep: int,
    words: NDArray[np.uint32],
    values: NDArray[np.float32],
    *,
    base: int = 0,
    sent: int = 0,
    vectorized: bool = _HAS_AVX512,
) -> PassResult:
    """Adds the gradient to the residual, moves the largest magnitudes of every chunk into the output.

    Every chunk sends exactly min(keep, its length) elements, zeros too where it must; of equal
    magnitudes the lower indices. An element whose sum is not finite keeps its old residual and is
    neither sent nor counted, so that its chunk may send fewer.

    Args:
        residual: contiguous float32 [n], changed in place.
        gradient: contiguous float32 [n].
        chunk: elements of a chunk, a power of two, 2 to LARGEST_CHUNK; the last one may be shorter.
        keep: how many to send of each chunk, 0 to chunk.
        words: uint32, at least sent + n + threshold.SPARE long; receives index << 1 | sign, ascending.
        values: float32, as long as `words`; receives the elements sent, 0.0 for -0.0.
        base: index of residual[0] within the update.
        sent: words that are there already.
        vectorized: use AVX-512.

    Returns:
        The new number of words, and what was seen on the way.

    Raises:
        ValueError: chunk or keep is out of its range.
    """
    row = table([residual.ctypes.data], [gradient.ctypes.data], [residual.size], [base])
    found = chunked_rows(row, chunk, keep, words, values, sent=sent, vectorized=vectorized)
    return PassResult(found.ends[0], found.residual_squares[0], found.nonfinite[0])


def chunked_rows(
    rows: Rows,
    chunk: int,
    keep: int,
    words: NDArray[np.uint32],
    values: NDArray[np.float32],
    *,
    sent: int = 0,
    vectorized: bool = _HAS_AVX512,
) -> RowsResult:
    """`chunked_pass` over the parameters of a table (see `rows.py`), in one call."""
    _check(chunk, keep)
    run = _avx512_rows if vectorized else _portable_rows
    ends, tallies = np.empty(len(rows), np.int64), np.zeros((len(rows), 2))
    run(rows, chunk, keep, words, values, sent, ends, tallies)
    return RowsResult.of(ends, tallies)


def _bits(chunk: int) -> int:
    return chunk.bit_length() - 1


def index_count(n: Any, chunk: int, keep: int) -> Any:
    """How many of n elements (a number, or an array of them) `chunked_pass` sends.

    Raises:
        ValueError: chunk or keep is out of its range.
    """
    _check(chunk, keep)
    found = n // chunk * keep + np.minimum(n % chunk, keep)
    return int(found) if isinstance(n, int) else found


def index_bytes(k: int, chunk: int) -> int:
    """Bytes of k packed indices."""
    return (k * _bits(chunk) + 7) // 8


@njit(nogil=True, cache=True)
def _write(words, firsts, counts, chunk, bits, out):  # type: ignore[no-untyped-def]
    waiting, width, at, begin = np.uint64(0), np.uint64(0), 0, 0
    for i in range(counts.size):
        for word in words[begin : begin + counts[i]]:
            index = (np.int64(word >> np.uint32(1)) - firsts[i]) & (chunk - 1)
            waiting |= np.uint64(index) << width
            width += np.uint64(bits)
            while width >= np.uint64(8):
                out[at] = np.uint8(waiting & np.uint64(255))
                at += 1
                waiting >>= np.uint64(8)
                width -= np.uint64(8)
        begin += counts[i]
    if width > np.uint64(0):
        out[at] = np.uint8(waiting)


@njit(nogil=True, cache=True)
def _read(body, firsts, sizes, chunk, keep, bits, words):  # type: ignore[no-untyped-def]
    """Reads the indices; whether they ascend, lie in their chunks, and only zeros follow them."""
    waiting, width, at, count, sound = np.uint64(0), np.uint64(0), 0, 0, True
    for i in range(sizes.size):
        for low in range(0, sizes[i], chunk):
            length = min(chunk, sizes[i] - low)
            last = np.int64(-1)
            for _ in range(min(keep, length)):
                while width < np.uint64(bits):
                    waiting |= np.uint64(body[at]) << width
                    at += 1
                    width += np.uint64(8)
                index = np.int64(waiting & np.uint64(chunk - 1))
                waiting >>= np.uint64(bits)
                width -= np.uint64(bits)
                sound &= last < index < length
                last = index
                words[count] = np.uint32((firsts[i] + low + index) << 1)
                count += 1
    return sound and waiting == np.uint64(0)


def write_indices(
    words: NDArray[np.uint32],
    firsts: NDArray[np.int64],
    counts: NDArray[np.int64],
    chunk: int,
    out: NDArray[np.uint8],
) -> None:
    """Packs the positions of what `chunked_pass` sent.

    log2(chunk) bits an index within its chunk, lowest bit first; chunks in order, indices ascending;
    the last byte is filled up with zeros.

    Args:
        words: uint32 [k], those of all parameters.
        firsts: int64 [m], the first position of each parameter.
        counts: int64 [m], how many words are of each.
        chunk: elements of a chunk.
        out: uint8 [index_bytes], every byte of it written.
    """
    _write(words, firsts, counts, chunk, _bits(chunk), out)


def read_indices(
    body: NDArray[np.uint8],
    firsts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    chunk: int,
    keep: int,
) -> NDArray[np.uint32]:
    """Reads what `write_indices` wrote.

    Args:
        body: uint8 [index_bytes], untrusted.
        firsts: int64 [m], the first position of each parameter of which anything was sent.
        sizes: int64 [m], their elements.
        chunk: elements of a chunk.
        keep: how many are sent of each chunk.

    Returns:
        uint32 [k], position << 1, ascending; the signs stand elsewhere.

    Raises:
        CorruptMessage: an index does not follow the one before it or lies beyond its chunk, or the padding is
            not zero.
    """
    words = np.empty(int(index_count(sizes, chunk, keep).sum()), np.uint32)
    if not _read(body, firsts, sizes, chunk, keep, _bits(chunk), words):
        raise CorruptMessage(
            "positions: packed indices do not ascend within their chunks, or padding is not zero"
        )
    return words
