"""Symbols of 1 to 16 bits side by side, without gaps: symbol i is bits i * b to i * b + b - 1.

Lowest bit first; zeros fill the last byte. Eight symbols of b bits are b whole bytes, so they are
moved together: their lanes in a 64-bit word are closed up pairwise, three times (twice from 16-bit
lanes, which take two words).
"""

from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes, aligned
from .bits import load64, store64
from .threads import run_all, shares

Symbols = NDArray[np.uint8 | np.uint16]

_GROUP = 8
"""Symbols that fill whole bytes, whatever their bits."""


def symbol_type(bits: int) -> type[np.uint8] | type[np.uint16]:
    """What holds a symbol of `bits` bits, 1 to 16."""
    if not 1 <= bits <= 16:
        raise ValueError(f"symbols have 1 to 16 bits, not {bits}")
    return np.uint8 if bits <= 8 else np.uint16


def check_symbols(symbols: Symbols, bits: int) -> None:
    """Raises ValueError unless symbols are 1-D, contiguous and of a type that holds `bits` bits."""
    wide = symbols.dtype in {np.dtype(np.uint16), np.dtype(symbol_type(bits))}
    if not wide or symbols.ndim != 1 or not symbols.flags.c_contiguous:
        raise ValueError(f"symbols of {bits} bits are a contiguous 1-D array of {symbol_type(bits).__name__}")


def packed_bytes(k: Any, bits: Any) -> Any:
    """Bytes of k symbols (numbers, or arrays of them)."""
    return (k * bits + 7) // 8


@njit(nogil=True, cache=True)
def _lanes(width, step):  # type: ignore[no-untyped-def]
    """A word with the lowest `width` bits of every `step` set."""
    word = np.uint64(0)
    for low in range(0, 64, step):
        word |= ((np.uint64(1) << np.uint64(width)) - np.uint64(1)) << np.uint64(low)
    return word


@njit(nogil=True, cache=True)
def _close(word, keep, shift):  # type: ignore[no-untyped-def]
    """Moves every second lane down by `shift`, to the end of the one below."""
    return (word & keep) | ((word & ~keep) >> shift)


@njit(nogil=True, cache=True)
def _open(word, keep, shift):  # type: ignore[no-untyped-def]
    """Moves the upper part of every pair up by `shift`."""
    return (word & keep) | ((word & ~keep) << shift)


@njit(nogil=True, cache=True)
def _pack8(symbols, bits, out):  # type: ignore[no-untyped-def]
    """Packs uint8 symbols while eight bytes of out are left; returns how many, and their OR."""
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    keep1, keep2, keep4 = _lanes(8, 16), _lanes(16, 32), _lanes(32, 64)
    shift1, shift2, shift4 = np.uint64(8) - one, np.uint64(16) - two, np.uint64(32) - four
    seen = np.uint64(0)
    done = byte = np.int64(0)
    while done + 8 <= symbols.size and byte + 8 <= out.size:
        word = load64(symbols, done)
        seen |= word
        word = _close(_close(_close(word, keep1, shift1), keep2, shift2), keep4, shift4)
        store64(out, byte, word)
        done += 8
        byte += bits
    return done, seen


@njit(nogil=True, cache=True)
def _unpack8(body, bits, symbols):  # type: ignore[no-untyped-def]
    """Unpacks uint8 symbols while eight bytes of body are left; returns how many."""
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    keep1, keep2, keep4 = _lanes(bits, 16), _lanes(2 * bits, 32), _lanes(4 * bits, 64)
    whole = _lanes(8 * bits, 64) if bits < 8 else ~np.uint64(0)
    shift1, shift2, shift4 = np.uint64(8) - one, np.uint64(16) - two, np.uint64(32) - four
    done = byte = np.int64(0)
    while done + 8 <= symbols.size and byte + 8 <= body.size:
        word = load64(body, byte) & whole
        word = _open(_open(_open(word, keep4, shift4), keep2, shift2), keep1, shift1)
        store64(symbols, done, word)
        done += 8
        byte += bits
    return done


@njit(nogil=True, cache=True)
def _pack16(symbols, bits, out):  # type: ignore[no-untyped-def]
    """Packs uint16 symbols while sixteen bytes of out are left; returns how many, and their OR."""
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    keep1, keep2 = _lanes(16, 32), _lanes(32, 64)
    shift1, shift2, carried = np.uint64(16) - one, np.uint64(32) - two, np.uint64(64) - four
    seen = np.uint64(0)
    done = byte = np.int64(0)
    while done + 8 <= symbols.size and byte + 16 <= out.size:
        low, high = load64(symbols, 2 * done), load64(symbols, 2 * done + 8)
        seen |= low | high
        low = _close(_close(low, keep1, shift1), keep2, shift2)
        high = _close(_close(high, keep1, shift1), keep2, shift2)
        store64(out, byte, low | high << four)
        store64(out, byte + 8, high >> carried)
        done += 8
        byte += bits
    return done, seen


@njit(nogil=True, cache=True)
def _unpack16(body, bits, symbols):  # type: ignore[no-untyped-def]
    """Unpacks uint16 symbols while sixteen bytes of body are left; returns how many."""
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    keep1, keep2, half = _lanes(bits, 32), _lanes(2 * bits, 64), _lanes(4 * bits, 64)
    shift1, shift2, carried = np.uint64(16) - one, np.uint64(32) - two, np.uint64(64) - four
    done = byte = np.int64(0)
    while done + 8 <= symbols.size and byte + 16 <= body.size:
        low, high = load64(body, byte), load64(body, byte + 8)
        high = (low >> four | high << carried) & half
        low &= half
        store64(symbols, 2 * done, _open(_open(low, keep2, shift2), keep1, shift1))
        store64(symbols, 2 * done + 8, _open(_open(high, keep2, shift2), keep1, shift1))
        done += 8
        byte += bits
    return done


@njit(nogil=True, cache=True)
def _pack_words(symbols, bits, out):  # type: ignore[no-untyped-def]
    """Packs symbols, as many as fill out; returns the OR of eight bytes of them after the other."""
    if symbols.itemsize == 1:
        done, seen = _pack8(symbols, bits, out)
    else:
        done, seen = _pack16(symbols, bits, out)
    byte = done * bits >> 3
    word = used = np.uint64(0)
    for i in range(done, symbols.size):
        symbol = np.uint64(symbols[i])
        seen |= symbol
        word |= symbol << used
        used += np.uint64(bits)
        while used >= np.uint64(8) or (i == symbols.size - 1 and used > np.uint64(0)):
            out[byte] = np.uint8(word & np.uint64(255))
            byte += 1
            word >>= np.uint64(8)
            used -= min(used, np.uint64(8))
    return seen


@njit(nogil=True, cache=True)
def _unpack_words(body, bits, symbols):  # type: ignore[no-untyped-def]
    """Unpacks as many symbols as body holds; returns what is left of its last byte."""
    done = _unpack8(body, bits, symbols) if symbols.itemsize == 1 else _unpack16(body, bits, symbols)
    byte = done * bits >> 3
    width = np.uint64(bits)
    mask = (np.uint64(1) << width) - np.uint64(1)
    word = there = np.uint64(0)
    for i in range(done, symbols.size):
        while there < width:
            word |= np.uint64(body[byte]) << there
            there += np.uint64(8)
            byte += 1
        symbols[i] = word & mask
        word >>= width
        there -= width
    return word


def pack(symbols: Symbols, bits: int, out: Bytes, threads: int = 1) -> None:
    """Packs symbols.

    Args:
        symbols: uint8 (bits up to 8) or uint16 [k], contiguous, below 2^bits.
        bits: 1 to 16.
        out: uint8 of exactly `packed_bytes(k, bits)`, whatever they are.
        threads: how many may work at once; the bytes do not depend on it.

    Raises:
        ValueError: arrays of another type or size, or a symbol of 2^bits or more.
    """
    check_symbols(symbols, bits)
    if out.size != packed_bytes(symbols.size, bits):
        raise ValueError(f"{symbols.size} symbols of {bits} bits do not make {out.size} bytes")
    if bits == 8 * symbols.itemsize:
        out[:] = symbols.view(np.uint8)
        return
    work = [
        partial(_pack_words, symbols[low:high], bits, out[low * bits // 8 : packed_bytes(high, bits)])
        for low, high in shares(symbols.size, threads, _GROUP)
    ]
    seen = np.array(run_all(work, threads), np.uint64).view(symbols.dtype)
    if (seen >> bits).any():
        raise ValueError(f"a symbol needs more than {bits} bits")


def unpack(
    body: Bytes, bits: int, k: int, threads: int = 1, dtype: type[np.uint8 | np.uint16] | None = None
) -> Symbols:
    """Reads what `pack` wrote.

    Args:
        body: uint8, contiguous, `packed_bytes(k, bits)` of them.
        bits: 1 to 16.
        k: how many symbols.
        threads: how many may work at once.
        dtype: theirs; by default the one that `bits` asks for.

    Returns:
        The symbols [k]. Of whole bytes they are the body's memory.

    Raises:
        CorruptMessage: body is not as long as k symbols are, or its last bits are not zero.
    """
    wanted = np.dtype(dtype or symbol_type(bits))
    if body.size != packed_bytes(k, bits):
        raise CorruptMessage(f"symbols: {body.size} bytes do not hold {k} of {bits} bits")
    if bits == 8 * wanted.itemsize:
        return aligned(body, wanted)
    symbols = np.empty(k, wanted)
    work = [
        partial(_unpack_words, body[low * bits // 8 : packed_bytes(high, bits)], bits, symbols[low:high])
        for low, high in shares(k, threads, _GROUP)
    ]
    if any(run_all(work, threads)):
        raise CorruptMessage("symbols: bits after the last one are set")
    return symbols
