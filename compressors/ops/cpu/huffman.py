"""Huffman-coded symbols: Oland and Raj, sections 3.3 and 4.

Section: the codebook (see `huffman_code`), then, unless one symbol alone occurs, the byte length of
every stream (uint16, little endian) and the streams. A stream is the codes of STREAM successive
symbols (the last one, of what is left), lowest bit of a byte first; zeros fill its last byte. No
symbols make no bytes.

Streams are independent: threads share them, and one thread reads four side by side, because where a
code begins is known only when the one before it was looked up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes
from .bitpack import Symbols, check_symbols, symbol_type
from .bits import load64, store64
from .huffman_code import (
    LENGTH_BITS,
    code_entries,
    code_lengths,
    codebook_of,
    decode_table,
    lengths_of,
    longest,
    read_codebook,
    write_codebook,
)
from .threads import run_all, shares

STREAM = 4096
"""Symbols in a stream: its length costs 0.06% of 8-bit codes."""

_SIDE_BY_SIDE = 4

_SHIFT = np.uint64(LENGTH_BITS)
_LENGTH = np.uint64((1 << LENGTH_BITS) - 1)
_WHOLE_BYTES = np.uint64(56)
_ONE, _THREE, _SEVEN, _EIGHT = np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(8)


def group_of(bits: int) -> tuple[int, ...]:
    """How many codes fit a 64-bit word at any bit of its first byte, as a tuple's length.

    A tuple's length is part of its type, so numba unrolls the loops over a group.
    """
    return (0,) * (4 if longest(bits) <= 14 else 3)


@njit(nogil=True, cache=True)
def _count(symbols, counts):  # type: ignore[no-untyped-def]
    """Counts symbols in four tables (uint32 [4, 2^bits]): equal neighbours need not wait for each other.

    Returns:
        The OR of all symbols, in a word of eight bytes of them.
    """
    counts0, counts1, counts2, counts3 = counts[0], counts[1], counts[2], counts[3]
    mask = np.uint64(counts0.size - 1)
    width = np.uint64(8 * symbols.itemsize)
    per_word = 8 // symbols.itemsize
    words = symbols.size // per_word
    seen = np.uint64(0)
    for i in range(words):
        word = load64(symbols, np.int64(8 * i))
        seen |= word
        for _ in range(per_word // 4):
            counts0[word & mask] += np.uint32(1)
            counts1[(word >> width) & mask] += np.uint32(1)
            counts2[(word >> np.uint64(2) * width) & mask] += np.uint32(1)
            counts3[(word >> np.uint64(3) * width) & mask] += np.uint32(1)
            word >>= np.uint64(32)
    for i in range(words * per_word, symbols.size):
        symbol = np.uint64(symbols[i])
        seen |= symbol
        counts0[symbol & mask] += np.uint32(1)
    return seen


@njit(nogil=True, cache=True)
def _measure(symbols, lengths, first, last, sizes):  # type: ignore[no-untyped-def]
    """Writes to sizes (uint16) how many bytes streams first to last take; symbols are valid."""
    for s in range(first, last):
        bits = np.uint64(0)
        for symbol in symbols[s * STREAM : (s + 1) * STREAM]:
            bits += np.uint64(lengths[np.uint64(symbol)])
        sizes[s] = (bits + _SEVEN) >> _THREE


@njit(nogil=True, cache=True)
def _write_stream(symbols, entries, group, out):  # type: ignore[no-untyped-def]
    """Writes one stream; whether it took exactly the bytes of `out`, and it writes to no others."""
    count, n = np.uint64(len(group)), np.uint64(symbols.size)
    word = used = i = np.uint64(0)
    byte = np.int64(0)
    while i + count <= n and byte + 8 <= out.size:
        for j in range(len(group)):
            entry = np.uint64(entries[np.uint64(symbols[i + np.uint64(j)])])
            word |= (entry >> _SHIFT) << (used & _LENGTH)
            # The code rides along in the upper bits: a group's lengths never carry into them.
            used += entry
        used &= _LENGTH
        store64(out, byte, word)
        byte += np.int64(used >> _THREE)
        word >>= used & _WHOLE_BYTES
        used &= _SEVEN
        i += count
    while i < n:
        entry = np.uint64(entries[np.uint64(symbols[i])])
        word |= (entry >> _SHIFT) << used
        used += entry & _LENGTH
        i += _ONE
        while used >= _EIGHT or (i == n and used > np.uint64(0)):
            if byte >= out.size:
                return False
            out[byte] = np.uint8(word & np.uint64(255))
            byte += 1
            word >>= _EIGHT
            used -= min(used, _EIGHT)
    # A last group of long codes fills eight bytes: its last bits stand in one that `byte` has not counted.
    return byte + np.int64(used > np.uint64(0)) == out.size


@njit(nogil=True, cache=True)
def write_streams(symbols, entries, group, starts, first, last, out):  # type: ignore[no-untyped-def]
    """Writes streams first to last; whether each took exactly the bytes between its start and the next."""
    good = True
    for s in range(first, last):
        stream = symbols[s * STREAM : (s + 1) * STREAM]
        good &= _write_stream(stream, entries, group, out[starts[s] : starts[s + 1]])
    return good


@njit(nogil=True, cache=True)
def _finish(body, bit, stop, table, symbols):  # type: ignore[no-untyped-def]
    """Reads a stream's rest from `bit` on; whether it ends in the byte before `stop`, with zeros."""
    mask = np.uint64(table.size - 1)
    for i in range(symbols.size):
        word = np.uint64(0)
        byte = bit >> 3
        for j in range(min(np.int64(4), body.size - byte)):
            word |= np.uint64(body[byte + j]) << np.uint64(8 * j)
        entry = np.uint64(table[(word >> np.uint64(bit & 7)) & mask])
        symbols[i] = entry >> _SHIFT
        bit += np.int64(entry & _LENGTH)
    if (bit + 7) >> 3 != stop:
        return False
    return bit & 7 == 0 or body[stop - 1] >> np.uint8(bit & 7) == 0


@njit(nogil=True, cache=True)
def _read_one(body, start, stop, table, group, symbols):  # type: ignore[no-untyped-def]
    mask = np.uint64(table.size - 1)
    count, n = np.uint64(len(group)), np.uint64(symbols.size)
    last_load = (body.size - 8) << 3
    bit = start << 3
    i = np.uint64(0)
    while i + count <= n and bit <= last_load:
        word = load64(body, bit >> 3) >> np.uint64(bit & 7)
        used = np.uint64(0)
        for j in range(len(group)):
            entry = np.uint64(table[word & mask])
            symbols[i + np.uint64(j)] = entry >> _SHIFT
            word >>= entry & _LENGTH
            used += entry
        bit += np.int64(used & _LENGTH)
        i += count
    return _finish(body, bit, stop, table, symbols[i:])


@njit(nogil=True, cache=True)
def _read_four(body, starts, table, group, symbols):  # type: ignore[no-untyped-def]
    """`_read_one` for four whole streams, step by step together."""
    mask = np.uint64(table.size - 1)
    count, n = np.uint64(len(group)), np.uint64(STREAM)
    last_load = (body.size - 8) << 3
    bit0, bit1, bit2, bit3 = starts[0] << 3, starts[1] << 3, starts[2] << 3, starts[3] << 3
    out0, out1 = symbols[:STREAM], symbols[STREAM : 2 * STREAM]
    out2, out3 = symbols[2 * STREAM : 3 * STREAM], symbols[3 * STREAM : 4 * STREAM]
    i = np.uint64(0)
    while i + count <= n and max(bit0, bit1, bit2, bit3) <= last_load:
        word0 = load64(body, bit0 >> 3) >> np.uint64(bit0 & 7)
        word1 = load64(body, bit1 >> 3) >> np.uint64(bit1 & 7)
        word2 = load64(body, bit2 >> 3) >> np.uint64(bit2 & 7)
        word3 = load64(body, bit3 >> 3) >> np.uint64(bit3 & 7)
        used0 = used1 = used2 = used3 = np.uint64(0)
        for j in range(len(group)):
            at = i + np.uint64(j)
            entry0, entry1 = np.uint64(table[word0 & mask]), np.uint64(table[word1 & mask])
            entry2, entry3 = np.uint64(table[word2 & mask]), np.uint64(table[word3 & mask])
            out0[at], out1[at] = entry0 >> _SHIFT, entry1 >> _SHIFT
            out2[at], out3[at] = entry2 >> _SHIFT, entry3 >> _SHIFT
            word0 >>= entry0 & _LENGTH
            word1 >>= entry1 & _LENGTH
            word2 >>= entry2 & _LENGTH
            word3 >>= entry3 & _LENGTH
            used0 += entry0
            used1 += entry1
            used2 += entry2
            used3 += entry3
        bit0 += np.int64(used0 & _LENGTH)
        bit1 += np.int64(used1 & _LENGTH)
        bit2 += np.int64(used2 & _LENGTH)
        bit3 += np.int64(used3 & _LENGTH)
        i += count
    good = _finish(body, bit0, starts[1], table, out0[i:])
    good &= _finish(body, bit1, starts[2], table, out1[i:])
    good &= _finish(body, bit2, starts[3], table, out2[i:])
    good &= _finish(body, bit3, starts[4], table, out3[i:])
    return good


@njit(nogil=True, cache=True)
def read_streams(body, starts, first, last, table, group, symbols):  # type: ignore[no-untyped-def]
    """Reads streams first to last; whether each ends where the next begins."""
    good = True
    s = first
    while s < last:
        if s + _SIDE_BY_SIDE <= last and (s + _SIDE_BY_SIDE) * STREAM <= symbols.size:
            four = symbols[s * STREAM : (s + _SIDE_BY_SIDE) * STREAM]
            good &= _read_four(body, starts[s : s + _SIDE_BY_SIDE + 1], table, group, four)
            s += _SIDE_BY_SIDE
        else:
            one = symbols[s * STREAM : (s + 1) * STREAM]
            good &= _read_one(body, starts[s], starts[s + 1], table, group, one)
            s += 1
    return good


def histogram(symbols: Symbols, bits: int, threads: int = 1) -> NDArray[np.int64]:
    """How often each of the 2^bits symbols occurs, int64 [2^bits].

    Raises:
        ValueError: symbols of another type than `bits` asks for, or one of 2^bits or more.
    """
    check_symbols(symbols, bits)
    pieces = shares(symbols.size, threads)
    counts = np.zeros((len(pieces), 4, 1 << bits), np.uint32)
    work = [partial(_count, symbols[low:high], counts[t]) for t, (low, high) in enumerate(pieces)]
    _check_seen(np.array(run_all(work, threads), np.uint64), symbols, bits)
    total: NDArray[np.int64] = counts.sum(axis=(0, 1), dtype=np.int64)
    return total


def _check_seen(seen: NDArray[np.uint64], symbols: Symbols, bits: int) -> None:
    if (seen.view(symbols.dtype) >> bits).any():
        raise ValueError(f"a symbol needs more than {bits} bits")


@dataclass(frozen=True, eq=False)
class HuffmanPlan:
    """What is known of a section before it is written.

    Attributes:
        bits: of a symbol.
        k: how many symbols.
        lengths: uint8 [2^bits], the code's lengths.
        codebook: uint8, the lengths written down.
        stream_bytes: uint16 [streams]; empty where one symbol alone occurs.
        size: bytes of the section, exactly.
    """

    bits: int
    k: int
    lengths: NDArray[np.uint8]
    codebook: Bytes
    stream_bytes: NDArray[np.uint16]
    size: int


def _streams(k: int, lengths: NDArray[np.uint8]) -> int:
    return -(-k // STREAM) if np.count_nonzero(lengths) > 1 else 0


def plan(symbols: Symbols, bits: int, threads: int = 1) -> HuffmanPlan:
    """Builds the code for these symbols and measures every stream.

    Args:
        symbols: uint8 (bits up to 8) or uint16 [k], contiguous, below 2^bits; k < 2^32.
        bits: 1 to 16.
        threads: how many may work at once; the plan does not depend on it.

    Raises:
        ValueError: symbols of another type than `bits` asks for, or one of 2^bits or more.
    """
    limit = longest(bits)
    if threads == 1:
        check_symbols(symbols, bits)
        seen, lengths, codebook, stream_bytes = plan_in_one_call(symbols, bits, limit)
        _check_seen(np.array([seen], np.uint64), symbols, bits)
    else:
        lengths = code_lengths(histogram(symbols, bits, threads), limit)
        codebook = write_codebook(lengths, limit) if symbols.size else np.empty(0, np.uint8)
        stream_bytes = np.empty(_streams(symbols.size, lengths), np.uint16)
        pieces = shares(stream_bytes.size, threads)
        run_all([partial(_measure, symbols, lengths, *piece, stream_bytes) for piece in pieces], threads)
    size = codebook.size + stream_bytes.nbytes + int(stream_bytes.sum(dtype=np.int64))
    return HuffmanPlan(bits, symbols.size, lengths, codebook, stream_bytes, size)


@njit(nogil=True, cache=True)
def plan_in_one_call(symbols, bits, limit):  # type: ignore[no-untyped-def]
    """A plan's parts, for one thread: a small parameter's take longer in Python than here.

    Returns:
        The OR of all symbols, as of `_count`; lengths, codebook and stream_bytes.
    """
    counts = np.zeros((4, 1 << bits), np.uint32)
    seen = _count(symbols, counts)
    total = np.zeros(1 << bits, np.int64)
    for symbol in range(total.size):
        for table in range(4):
            total[symbol] += np.int64(counts[table, symbol])
    lengths = lengths_of(total, limit)
    codebook = codebook_of(lengths, limit) if symbols.size else np.empty(0, np.uint8)
    streams = -(-symbols.size // STREAM) if np.count_nonzero(lengths) > 1 else 0
    stream_bytes = np.empty(streams, np.uint16)
    _measure(symbols, lengths, 0, streams, stream_bytes)
    return seen, lengths, codebook, stream_bytes


def _starts(begin: int, stream_bytes: NDArray[np.uint16]) -> NDArray[np.int64]:
    """Where each stream begins, and the last one ends."""
    return np.cumsum(np.concatenate(([begin], stream_bytes)), dtype=np.int64)


def _all_good(work: Sequence[Any], threads: int) -> bool:
    return all(run_all(work, threads))


def encode(plan: HuffmanPlan, symbols: Symbols, out: Bytes, threads: int = 1) -> None:
    """Writes the section.

    Args:
        plan: of these symbols.
        symbols: as `plan` was given.
        out: uint8 of exactly `plan.size` bytes, whatever they are.
        threads: how many may work at once; the bytes do not depend on it.

    Raises:
        ValueError: symbols that were not planned, or `out` of another size.
    """
    check_symbols(symbols, plan.bits)
    if symbols.size != plan.k or out.size != plan.size:
        raise ValueError(f"{symbols.size} symbols into {out.size} bytes; planned: {plan.k} into {plan.size}")
    table_end = plan.codebook.size + plan.stream_bytes.nbytes
    out[: plan.codebook.size] = plan.codebook
    out[plan.codebook.size : table_end] = plan.stream_bytes.astype("<u2").view(np.uint8)
    starts = _starts(table_end, plan.stream_bytes)
    entries = code_entries(plan.lengths)
    work = [
        partial(write_streams, symbols, entries, group_of(plan.bits), starts, *piece, out)
        for piece in shares(plan.stream_bytes.size, threads)
    ]
    if not _all_good(work, threads):
        raise ValueError("these are not the symbols that were planned")


def _read_head(body: Bytes, bits: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The code's lengths, and where each stream begins (by what the head says) and the last one ends."""
    lengths, at = read_codebook(body, 1 << bits, longest(bits))
    table_end = at + 2 * _streams(k, lengths)
    if table_end > body.size:
        raise CorruptMessage(f"the table of stream lengths ends at byte {table_end} of {body.size}")
    # Through bytes: a table may begin at an odd address.
    return lengths, _starts(table_end, np.frombuffer(body[at:table_end].tobytes(), "<u2"))


def section_bytes(body: Bytes, bits: int, k: int) -> int:
    """How long the section is that `body` begins with, by its codebook and table alone.

    Raises:
        CorruptMessage: the codebook is not valid, or body ends before the table does.
    """
    return int(_read_head(body, bits, k)[1][-1]) if k else 0


def decode(body: Bytes, bits: int, k: int, threads: int = 1) -> Symbols:
    """Reads a section.

    Args:
        body: uint8, contiguous: the section and nothing else.
        bits: of a symbol, 1 to 16.
        k: how many symbols.
        threads: how many may work at once.

    Returns:
        The symbols, uint8 (bits up to 8) or uint16 [k], each below 2^bits.

    Raises:
        CorruptMessage: no section of k symbols.
    """
    if k == 0:
        if body.size:
            raise CorruptMessage(f"{body.size} bytes for no symbols")
        return np.empty(0, symbol_type(bits))
    lengths, starts = _read_head(body, bits, k)
    if starts[-1] != body.size:
        raise CorruptMessage(f"{body.size} bytes of Huffman codes, their table says {starts[-1]}")
    symbols = np.empty(k, symbol_type(bits))
    if starts.size == 1:
        symbols[:] = lengths.argmax()
        return symbols
    table = decode_table(lengths)
    work = [
        partial(read_streams, body, starts, *piece, table, group_of(bits), symbols)
        for piece in shares(starts.size - 1, threads, _SIDE_BY_SIDE)
    ]
    if not _all_good(work, threads):
        raise CorruptMessage("a stream of Huffman codes does not end where its length says")
    return symbols
