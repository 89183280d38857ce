"""Bytes of many messages in one call: copied, packed, unpacked, found.

Each message is short where a layer is small, and a call for each piece would take longer than its work.
"""

from functools import lru_cache, partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..offsets import Numbers
from .bitpack import pack_words, unpack_words
from .threads import portions, run_all

WHOLE_BYTES = {8, 16, 32}
"""Bits of symbols that take whole bytes."""
_LARGE = 1 << 14
"""Bytes that NumPy copies faster than a kernel's loop."""
_PIECE = 1 << 16
"""Symbols that a thread takes together."""


def copy_rows(
    source: NDArray[np.uint8], begins: Numbers, sizes: Numbers, out: NDArray[np.uint8], ats: Numbers
) -> None:
    """Copies pieces of an array.

    Args:
        source: uint8.
        begins: int64 [m], where each piece begins.
        sizes: int64 [m], its bytes.
        out: uint8.
        ats: int64 [m], where it begins there.
    """
    large = np.flatnonzero(sizes > _LARGE)
    for i in large.tolist():
        out[ats[i] : ats[i] + sizes[i]] = source[begins[i] : begins[i] + sizes[i]]
    if large.size < sizes.size:
        _copy_small_rows(source, begins, sizes, out, ats)


@njit(nogil=True, cache=True)
def _copy_small_rows(source, begins, sizes, out, ats):  # type: ignore[no-untyped-def]
    for i in range(begins.size):
        begin, at, size = begins[i], ats[i], sizes[i]
        if size <= _LARGE:
            for j in range(size):
                out[at + j] = source[begin + j]


def take_rows(payload: NDArray[np.uint8], begins: Numbers, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Copies of elements of a type, from wherever they begin among bytes."""
    found = np.empty(begins.size, dtype)
    sizes, ats = _even_rows(begins.size, dtype.itemsize)
    _copy_small_rows(payload, begins, sizes, found.view(np.uint8), ats)
    return found


def put_rows(rows: NDArray[Any], out: NDArray[np.uint8], ats: Numbers) -> None:
    """Writes the bytes of an array's elements, each where it is to stand."""
    sizes, begins = _even_rows(rows.size, rows.itemsize)
    _copy_small_rows(rows.view(np.uint8), begins, sizes, out, ats)


@lru_cache(256)  # every step asks for the same
def _even_rows(count: int, width: int) -> tuple[Numbers, Numbers]:
    """Sizes and begins of rows of some bytes, one after the other."""
    return np.full(count, width, np.int64), np.arange(count) * width


@njit(nogil=True, cache=True)
def _pack_rows(symbols, begins, counts, bits, out, ats):  # type: ignore[no-untyped-def]
    seen = np.uint64(0)
    for i in range(begins.size):
        begin, at, count = begins[i], ats[i], counts[i]
        seen |= pack_words(symbols[begin : begin + count], bits, out[at : at + (count * bits + 7) // 8])
    return seen


@njit(nogil=True, cache=True)
def _unpack_rows(body, begins, bits, symbols, ats, counts):  # type: ignore[no-untyped-def]
    left = np.uint64(0)
    for i in range(begins.size):
        begin, at, count = begins[i], ats[i], counts[i]
        left |= unpack_words(body[begin : begin + (count * bits + 7) // 8], bits, symbols[at : at + count])
    return left


@njit(nogil=True, cache=True)
def bounds_of(payload, header, length_at, bounds):  # type: ignore[no-untyped-def]
    """Where messages begin, by the lengths in their headers.

    Args:
        payload: uint8, untrusted.
        header: bytes of a header.
        length_at: where in it the length of the body stands, 8 bytes.
        bounds: int64 [most + 1]; receives where each message begins, and the last one ends.

    Returns:
        How many messages there are; -1 where they do not end with the payload, or are more than `most`.
    """
    at, count = np.int64(0), 0
    while at < payload.size:
        if count == bounds.size - 1 or payload.size - at < header:
            return -1
        bounds[count] = at
        length = np.uint64(0)
        for j in range(8):
            length |= np.uint64(payload[at + length_at + j]) << np.uint64(8 * j)
        at += header
        if length > np.uint64(payload.size - at):
            return -1
        at += np.int64(length)
        count += 1
    bounds[count] = at
    return count


def pack_rows(
    symbols: NDArray[Any],
    begins: Numbers,
    counts: Numbers,
    bits: int,
    out: NDArray[np.uint8],
    ats: Numbers,
    threads: int,
) -> None:
    """`bitpack.pack` for many parameters.

    Args:
        symbols: uint8 (bits up to 8) or uint16, all below 2^bits; or numbers of 32 bits.
        begins: where each one's begin.
        counts: how many there are.
        bits: 1 to 16, or 32.
        out: uint8.
        ats: where each one's bytes begin there.
        threads: how many may work at once.

    Raises:
        ValueError: a symbol of 2^bits or more.
    """
    if bits in WHOLE_BYTES:
        width = bits // 8
        copy_rows(symbols.view(np.uint8), width * begins, width * counts, out, ats)
        return
    begins, ats, counts = _cut(begins, ats, counts, 1, bits / 8, threads)
    work = [
        partial(_pack_rows, symbols, begins[at], counts[at], bits, out, ats[at])
        for at in portions(counts, threads)
    ]
    if (np.array(run_all(work, threads), np.uint64).view(symbols.dtype) >> bits).any():
        raise ValueError(f"a symbol needs more than {bits} bits")


def unpack_rows(
    body: NDArray[np.uint8],
    begins: Numbers,
    bits: int,
    symbols: NDArray[Any],
    ats: Numbers,
    counts: Numbers,
    threads: int,
) -> bool:
    """`bitpack.unpack` for many parameters; whether nothing stands in their last bytes' spare bits.

    Args:
        body: uint8.
        begins: where each one's bytes begin.
        bits: 1 to 16, or 32.
        symbols: uint8 (bits up to 8), uint16, or numbers of 32 bits; receives them.
        ats: where each one's begin there.
        counts: how many there are.
        threads: how many may work at once.
    """
    if bits in WHOLE_BYTES:
        width = bits // 8
        copy_rows(body, begins, width * counts, symbols.view(np.uint8), width * ats)
        return True
    begins, ats, counts = _cut(begins, ats, counts, bits / 8, 1, threads)
    work = [
        partial(_unpack_rows, body, begins[at], bits, symbols, ats[at], counts[at])
        for at in portions(counts, threads)
    ]
    return not any(run_all(work, threads))


def _cut(
    begins: Numbers, ats: Numbers, counts: Numbers, step: float, step_there: float, threads: int
) -> tuple[Numbers, Numbers, Numbers]:
    """Rows whose parameters are cut into pieces of whole bytes, that threads can share.

    Args:
        begins: where each parameter begins.
        ats: where it begins in the other array.
        counts: its symbols.
        step: how far a symbol is from the next.
        step_there: the same in the other array.
        threads: how many there are; one needs no pieces.
    """
    if threads == 1:
        return begins, ats, counts
    pieces = -(-counts // _PIECE)
    by = np.repeat(np.arange(counts.size), pieces)
    before = _PIECE * (np.arange(by.size) - (np.cumsum(pieces) - pieces)[by])
    return (
        begins[by] + (before * step).astype(np.int64),
        ats[by] + (before * step_there).astype(np.int64),
        np.minimum(counts[by] - before, _PIECE),
    )


def packed_sizes(counts: Numbers, bits: int) -> Numbers:
    """`packed_bytes` of each."""
    return (counts * bits + 7) // 8
