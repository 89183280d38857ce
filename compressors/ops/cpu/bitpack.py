"""Symbols of 1 to 16 bits side by side, without gaps: symbol i is bits i * b to i * b + b - 1.

Lowest bit first; zeros fill the last byte. Four symbols are moved at a time: they fit a 64-bit word, at
whichever half of a byte they begin.
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes, aligned, symbol_type
from .bits import load64, store64
from .threads import run_shares

Symbols = NDArray[np.uint8 | np.uint16]

_LEAST = 2**18
"""Symbols below which a thread of its own costs more than it saves."""
_GROUP = 8
"""Symbols that fill whole bytes, whatever their bits."""


def check_symbols(symbols: Symbols, bits: int) -> None:
    """Raises ValueError unless symbols are 1-D, contiguous and of a type that holds `bits` bits."""
    wide = symbols.dtype in {np.dtype(np.uint16), np.dtype(symbol_type(bits))}
    if not wide or symbols.ndim != 1 or not symbols.flags.c_contiguous:
        raise ValueError(f"symbols of {bits} bits are a contiguous 1-D array of {symbol_type(bits).__name__}")


def packed_bytes(k: Any, bits: Any) -> Any:
    """Bytes of k symbols (numbers, or arrays of them)."""
    return (k * bits + 7) // 8


@njit(nogil=True, cache=True)
def _pack_words(symbols, bits, out):  # type: ignore[no-untyped-def]
    """Packs symbols of 1 to 15 bits, as many as fill out; returns the OR of all of them."""
    width, four_wide = np.uint64(bits), np.uint64(4 * bits)
    word = used = seen = np.uint64(0)
    done = byte = np.int64(0)
    while done + 4 <= symbols.size and byte + 8 <= out.size:
        four = np.uint64(0)
        for j in range(4):
            symbol = np.uint64(symbols[done + j])
            seen |= symbol
            four |= symbol << (np.uint64(j) * width)
        store64(out, byte, word | four << used)
        byte += np.int64((used + four_wide) >> np.uint64(3))
        used = (used + four_wide) & np.uint64(7)  # 0 or 4
        word = four >> (four_wide - used)
        done += 4
    for i in range(done, symbols.size):
        symbol = np.uint64(symbols[i])
        seen |= symbol
        word |= symbol << used
        used += width
        while used >= np.uint64(8) or (i == symbols.size - 1 and used > np.uint64(0)):
            out[byte] = np.uint8(word & np.uint64(255))
            byte += 1
            word >>= np.uint64(8)
            used -= min(used, np.uint64(8))
    return seen


@njit(nogil=True, cache=True)
def _unpack_words(body, bits, symbols):  # type: ignore[no-untyped-def]
    """Unpacks as many symbols of 1 to 15 bits as body holds; returns what is left of its last byte."""
    width = np.uint64(bits)
    mask = (np.uint64(1) << width) - np.uint64(1)
    done = np.int64(0)
    while done + 4 <= symbols.size and (done * bits >> 3) + 8 <= body.size:
        word = load64(body, done * bits >> 3) >> np.uint64(done * bits & 7)
        for j in range(4):
            symbols[done + j] = word >> (np.uint64(j) * width) & mask
        done += 4
    byte, word, filled = done * bits >> 3, np.uint64(0), np.uint64(0)
    if done * bits & 7:
        word, filled = np.uint64(body[byte]) >> np.uint64(4), np.uint64(4)
        byte += 1
    for i in range(done, symbols.size):
        while filled < width:
            word |= np.uint64(body[byte]) << filled
            filled += np.uint64(8)
            byte += 1
        symbols[i] = word & mask
        word >>= width
        filled -= width
    return word


def pack(symbols: Symbols, bits: int, out: Bytes, threads: int = 1) -> None:
    """Packs symbols, uint8 (up to 8 bits) or uint16 [k], into uint8 of exactly `packed_bytes(k, bits)`.

    The bytes do not depend on how many threads work.

    Raises:
        ValueError: arrays of another type or size, or a symbol of 2^bits or more.
    """
    check_symbols(symbols, bits)
    if out.size != packed_bytes(symbols.size, bits):
        raise ValueError(f"{symbols.size} symbols of {bits} bits do not make {out.size} bytes")
    if bits == 8 * symbols.itemsize:
        out[:] = symbols.view(np.uint8)
        return

    def pack_share(low: int, high: int) -> Any:
        return _pack_words(symbols[low:high], bits, out[low * bits // 8 : packed_bytes(high, bits)])

    seen = np.array(run_shares(pack_share, symbols.size, threads, _GROUP, _LEAST), np.uint64)
    seen = seen.view(symbols.dtype)
    if (seen >> bits).any():
        raise ValueError(f"a symbol needs more than {bits} bits")


def unpack(body: Bytes, bits: int, k: int, threads: int = 1) -> Symbols:
    """Reads what `pack` wrote: k symbols, of the type that `bits` asks for.

    Symbols of whole bytes are the body's memory.

    Raises:
        CorruptMessage: body is not as long as k symbols are, or its last bits are not zero.
    """
    wanted = np.dtype(symbol_type(bits))
    if body.size != packed_bytes(k, bits):
        raise CorruptMessage(f"symbols: {body.size} bytes do not hold {k} of {bits} bits")
    if bits == 8 * wanted.itemsize:
        return aligned(body, wanted)
    symbols = np.empty(k, wanted)

    def unpack_share(low: int, high: int) -> Any:
        return _unpack_words(body[low * bits // 8 : packed_bytes(high, bits)], bits, symbols[low:high])

    if any(run_shares(unpack_share, k, threads, _GROUP, _LEAST)):
        raise CorruptMessage("symbols: bits after the last one are set")
    return symbols


# Positions as indices within chunks, which are packed


@njit(nogil=True, cache=True)
def write_indices(words, ends, firsts, chunk, indices):  # type: ignore[no-untyped-def]
    """Writes the places within chunks of each parameter's words, which end at `ends`, from `firsts` on."""
    at = 0
    for i in range(ends.size):
        for j in range(at, ends[i]):
            indices[j] = (np.int64(words[j] >> np.uint32(1)) - firsts[i]) & (chunk - 1)
        at = ends[i]


@njit(nogil=True, cache=True)
def read_indices(indices, firsts, sizes, chunk, keep, words):  # type: ignore[no-untyped-def]
    """Writes the words of indices within chunks, uint16 or uint8 [k]; whether all ascend, and lie in theirs.

    There are `keep` of every chunk, or all of a shorter one, of parameters that begin at `firsts`. Words are
    uint32 [k], position << 1.
    """
    at = 0
    for i in range(firsts.size):
        for low in range(0, sizes[i], chunk):
            length, before = min(chunk, sizes[i] - low), np.int64(-1)
            for _ in range(min(keep, length)):
                index = np.int64(indices[at])
                if index <= before or index >= length:
                    return False
                words[at], before = np.uint32((firsts[i] + low + index) << 1), index
                at += 1
    return True
