"""Huffman-coded symbols (Oland and Raj, sections 3.3 and 4; docs/reference/messages.md has the bytes).

A section is a codebook and streams, which are independent, so that threads share them. The code is
canonical: its lengths are all that a decoder needs, codes ascend with (length, symbol). Lengths are
limited, so that a decoder needs one table lookup a symbol. Bits are written lowest first; a code's first
bit is its lowest. In the codebook lengths stand relative to the one before, because neighbours among
quantized values are about equally likely.
"""

from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..array import Bytes, readonly, symbol_type
from .bitpack import Symbols, check_symbols
from .bits import Section, load64, store64
from .threads import portions, run_all, run_shares

STREAM = 4096
"""Symbols in a stream: its length costs 0.06% of 8-bit codes."""

_LEAST_STREAMS = 16
"""Streams below which a thread of its own costs more than it saves."""
_SIDE_BY_SIDE = 4
"""Streams that one thread reads in turn, as where a code begins is known only when the one before it was
looked up."""

LENGTH_BITS = 6
"""An entry is a code (or a symbol) above this many bits of code length."""

_LONGEST = 18
_TOKENS, _SPARE_TOKENS = 16, 48
"""Bits of the codebook, at most, for a symbol: 4 and a gamma of at most 2 * 5 + 1; and for a last gap."""
_SHIFT = np.uint64(LENGTH_BITS)
_LENGTH = np.uint64((1 << LENGTH_BITS) - 1)
_WHOLE_BYTES = np.uint64(56)
_ONE, _THREE, _SEVEN, _EIGHT = np.uint64(1), np.uint64(3), np.uint64(7), np.uint64(8)


def longest(bits: int) -> int:
    """The limit of code lengths for symbols of `bits` bits."""
    # 14 bits: a table of uint16 fits the first-level cache and four codes a 64-bit word. 18 bits: 1 MB.
    return min(max(14, bits + 3), _LONGEST)


@njit(nogil=True, cache=True)
def _package_merge(weights, limit):  # type: ignore[no-untyped-def]
    """Optimal lengths of at most `limit` bits for ascending weights (int64 [n], n >= 2).

    Larmore and Hirschberg's package-merge, run level by level: a level's list is the leaves merged
    with the pairs of the level before. Which entries are leaves is all that is kept of a level: the
    solution takes a prefix of each list, hence the lightest leaves of each, and a leaf's length is
    the number of levels that take it.
    """
    n = weights.size
    is_leaf = np.zeros((limit, 2 * n), np.bool_)
    before, merged = np.empty(2 * n, np.int64), np.empty(2 * n, np.int64)
    size = 0
    for level in range(limit):
        pairs = size // 2
        leaf = pair = 0
        for i in range(n + pairs):
            lightest = before[2 * pair] + before[2 * pair + 1] if pair < pairs else np.int64(-1)
            if leaf < n and (pair == pairs or weights[leaf] <= lightest):
                merged[i] = weights[leaf]
                is_leaf[level, i] = True
                leaf += 1
            else:
                merged[i] = lightest
                pair += 1
        size = n + pairs
        before, merged = merged, before
    lengths = np.zeros(n, np.uint8)
    take = 2 * n - 2
    for level in range(limit - 1, -1, -1):
        leaves = 0
        for i in range(take):
            leaves += is_leaf[level, i]
        for i in range(leaves):
            lengths[i] += np.uint8(1)
        take = 2 * (take - leaves)
    return lengths


@njit(nogil=True, cache=True)
def find_lengths(counts, limit, lengths):  # type: ignore[no-untyped-def]
    """Writes lengths of an optimal code among those of at most `limit` bits to uint8 [symbols], zeros.

    Counts are int64 [symbols]; their sum times `limit` fits 63 bits, and no more than 2^limit occur. A symbol
    that occurs alone has length 1. Returns how many occur.
    """
    used = np.flatnonzero(counts)
    ascending = used[np.argsort(counts[used], kind="mergesort")]
    if used.size > 1:
        limited = _package_merge(counts[ascending], limit)
        for i in range(used.size):
            lengths[ascending[i]] = limited[i]
    elif used.size:
        lengths[used[0]] = np.uint8(1)
    return used.size


@njit(nogil=True, cache=True)
def code_entries(lengths):  # type: ignore[no-untyped-def]
    """The canonical code: uint32 [symbols] of code << 6 | length, 0 where the length is 0."""
    entries = np.zeros(lengths.size, np.uint32)
    # following[l]: the next code of l bits, from how many codes are shorter.
    following = np.zeros(_LONGEST + 2, np.int64)
    for length in lengths:
        if length:
            following[length + 1] += 1
    for length in range(1, following.size):
        following[length] = (following[length] + following[length - 1]) << 1
    for symbol in range(lengths.size):
        length = np.int64(lengths[symbol])
        if length:
            code = following[length]
            following[length] += 1
            backwards = 0
            for _ in range(length):
                backwards = backwards << 1 | code & 1
                code >>= 1
            entries[symbol] = backwards << LENGTH_BITS | length
    return entries


@njit(nogil=True, cache=True)
def _fill_table(entries, table):  # type: ignore[no-untyped-def]
    """What the next bits of a stream say, by their number: symbol << 6 | length."""
    for symbol in range(entries.size):
        length = np.int64(entries[symbol] & _LENGTH)
        if length:
            table[entries[symbol] >> LENGTH_BITS :: 1 << length] = symbol << LENGTH_BITS | length


@njit(nogil=True, cache=True, inline="always")  # numba would compile it for each number that is put
def _put(bits, at, value, count):  # type: ignore[no-untyped-def]
    """Appends the `count` lowest bits of value, lowest first."""
    for i in range(count):
        bits[at + i] = value >> i & 1
    return at + count


@njit(nogil=True, cache=True)
def _put_gamma(bits, at, value):  # type: ignore[no-untyped-def]
    below = 0
    while value >> below > 1:
        below += 1
    at = _put(bits, at, 0, below)
    for i in range(below, -1, -1):
        at = _put(bits, at, value >> i, 1)
    return at


@njit(nogil=True, cache=True)
def _write_tokens(lengths, limit, bits):  # type: ignore[no-untyped-def]
    at, last, symbol = 0, limit, 0
    while symbol < lengths.size:
        length = np.int64(lengths[symbol])
        if length == 0:
            first = symbol
            while symbol < lengths.size and lengths[symbol] == 0:
                symbol += 1
            at = _put_gamma(bits, _put(bits, at, 3, 3), symbol - first)
            continue
        step = abs(length - last)
        shorter = np.int64(length < last)
        if step == 0:
            at = _put(bits, at, 0, 1)
        elif step == 1:
            at = _put(bits, at, 1 | shorter << 2, 3)
        else:
            at = _put_gamma(bits, _put(bits, at, 7 | shorter << 3, 4), step - 1)
        last = length
        symbol += 1
    return at


@njit(nogil=True, cache=True)
def _bit(body, at):  # type: ignore[no-untyped-def]
    """The bit at `at`; 1 behind the end, which ends every gamma's zeros."""
    return np.int64(body[at >> 3]) >> (at & 7) & 1 if at >> 3 < body.size else np.int64(1)


@njit(nogil=True, cache=True)
def _gamma(body, at):  # type: ignore[no-untyped-def]
    """The number at `at` and where it ends; 0 where it has more than 17 bits."""
    below = 0
    while _bit(body, at) == 0:
        below += 1
        at += 1
        if below > 16:
            return 0, at
    value = 0
    for _ in range(below + 1):
        value = value << 1 | _bit(body, at)
        at += 1
    return value, at


@njit(nogil=True, cache=True)
def _read_tokens(body, limit, lengths):  # type: ignore[no-untyped-def]
    """Fills lengths (zeroed); returns how many bits that took, or -1 where a token is not valid."""
    at, last, symbol = np.int64(0), limit, 0
    after_gap = False
    while symbol < lengths.size:
        if at >> 3 >= body.size:
            return -1
        if _bit(body, at) == 0:
            at += 1
        elif _bit(body, at + 1) == 0:
            last += 1 - 2 * _bit(body, at + 2)
            at += 3
        elif _bit(body, at + 2) == 0:
            gap, at = _gamma(body, at + 3)
            if gap == 0 or gap > lengths.size - symbol or after_gap:
                return -1
            symbol += gap
            after_gap = True
            continue
        else:
            sign = 1 - 2 * _bit(body, at + 3)
            step, at = _gamma(body, at + 4)
            if step == 0:
                return -1
            last += sign * (step + 1)
        if last < 1 or last > limit:
            return -1
        lengths[symbol] = last
        symbol += 1
        after_gap = False
    return at


def read_codebook(body: NDArray[np.uint8], symbols: int, limit: int) -> tuple[NDArray[np.uint8], int]:
    """Reads the codebook, of `symbols` lengths up to `limit`, that `body` begins with.

    Returns:
        The lengths, uint8 [symbols], and how many bytes of body they took.

    Raises:
        CorruptMessage: no valid tokens, or lengths that are not those of a complete prefix code.
    """
    lengths = np.zeros(symbols, np.uint8)
    bits = _read_tokens(body, limit, lengths)
    size = (bits + 7) // 8
    if bits < 0 or size > body.size:
        raise CorruptMessage("symbols: the Huffman codebook is cut off or holds no valid lengths")
    if bits % 8 and body[size - 1] >> (bits % 8):
        raise CorruptMessage("symbols: bits after the Huffman codebook's last token are set")
    used = lengths[lengths > 0].astype(np.int64)
    alone = used.size == 1 and used[0] == 1
    if not alone and int((1 << (limit - used)).sum()) != 1 << limit:
        raise CorruptMessage("symbols: the Huffman codebook's lengths make no complete prefix code")
    return lengths, size


# Sections


def _group_of(bits: int) -> tuple[int, ...]:
    """How many codes fit a 64-bit word at any bit of its first byte, as a tuple's length.

    A tuple's length is part of its type, so numba unrolls the loops over a group.
    """
    return (0,) * (4 if longest(bits) <= 14 else 3)


@njit(nogil=True, cache=True)
def _measure(symbols, lengths, sizes, first, last):  # type: ignore[no-untyped-def]
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
def _write_streams(symbols, entries, group, starts, out, first, last):  # type: ignore[no-untyped-def]
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
def _read_group(body, bit, table, group, symbols):  # type: ignore[no-untyped-def]
    """Reads as many symbols as a group has from `bit` on; returns where they end."""
    mask = np.uint64(table.size - 1)
    word, used = load64(body, bit >> 3) >> np.uint64(bit & 7), np.uint64(0)
    for j in range(len(group)):
        entry = np.uint64(table[word & mask])
        symbols[j] = entry >> _SHIFT
        word >>= entry & _LENGTH
        used += entry
    return bit + np.int64(used & _LENGTH)


@njit(nogil=True, cache=True)
def _read_streams(body, starts, table, group, symbols, first, last):  # type: ignore[no-untyped-def]
    """Reads streams first to last, four in turn; whether each ends where the next begins."""
    good, last_load = True, (body.size - 8) << 3
    for s0 in range(first, last, _SIDE_BY_SIDE):
        # Where fewer are left, the last one is read several times.
        s1, s2, s3 = min(s0 + 1, last - 1), min(s0 + 2, last - 1), min(s0 + 3, last - 1)
        own0, own1 = symbols[s0 * STREAM : (s0 + 1) * STREAM], symbols[s1 * STREAM : (s1 + 1) * STREAM]
        own2, own3 = symbols[s2 * STREAM : (s2 + 1) * STREAM], symbols[s3 * STREAM : (s3 + 1) * STREAM]
        bit0, bit1, bit2, bit3 = starts[s0] << 3, starts[s1] << 3, starts[s2] << 3, starts[s3] << 3
        i = 0
        while i + len(group) <= own3.size and max(bit0, bit1, bit2, bit3) <= last_load:
            bit0 = _read_group(body, bit0, table, group, own0[i:])
            bit1 = _read_group(body, bit1, table, group, own1[i:])
            bit2 = _read_group(body, bit2, table, group, own2[i:])
            bit3 = _read_group(body, bit3, table, group, own3[i:])
            i += len(group)
        good &= _finish(body, bit0, starts[s0 + 1], table, own0[i:])
        good &= _finish(body, bit1, starts[s1 + 1], table, own1[i:])
        good &= _finish(body, bit2, starts[s2 + 1], table, own2[i:])
        good &= _finish(body, bit3, starts[s3 + 1], table, own3[i:])
    return good


@dataclass(frozen=True, eq=False)
class Code:
    """The best code for symbols of some frequencies."""

    lengths: NDArray[np.uint8]
    """uint8 [2^bits]; 0 for symbols that do not occur, 1 for one that occurs alone."""
    estimate: float
    """Bytes of a section of these symbols, but for half a byte of padding in each stream."""

    @classmethod
    def of(cls, counts: NDArray[np.int64]) -> "Code":
        """For frequencies, int64 [2^bits], of at least one symbol."""
        lengths = np.zeros(counts.size, np.uint8)
        return cls(lengths, _estimate(counts, longest(counts.size.bit_length() - 1), lengths))

    @cached_property
    def codebook(self) -> Bytes:
        """The lengths as they are written."""
        bits = np.empty(_TOKENS * self.lengths.size + _SPARE_TOKENS, np.uint8)
        limit = longest(self.lengths.size.bit_length() - 1)
        return np.packbits(bits[: _write_tokens(self.lengths, limit, bits)], bitorder="little")


@dataclass(frozen=True, eq=False)
class Codes:
    """The best codes for runs of symbols, each run by itself."""

    estimates: NDArray[np.float64]
    """float64 [runs], as of a `Code`."""
    frequencies: NDArray[np.int64]
    """How often each symbol occurs in all runs, int64 [2^bits of the widest]."""
    lengths: NDArray[np.uint8]
    """Code lengths of all runs, one after the other."""
    ends: NDArray[np.int64]
    """int64 [runs], where the lengths of each end."""

    @classmethod
    def of(
        cls, symbols: Symbols, ends: NDArray[np.int64], bits: NDArray[np.int64], threads: int = 1
    ) -> "Codes":
        """For symbols whose runs end at `ends`, int64 [runs], and have so many bits each.

        Raises:
            ValueError: symbols of another type than bits ask for, or one that needs more than its run has.
        """
        for width in set(bits.tolist()):
            check_symbols(symbols, width)
        sizes, widest = 1 << bits, 1 << int(bits.max(initial=0))
        stops, estimates = np.cumsum(sizes), np.empty(bits.size)
        lengths = np.zeros(int(sizes.sum()), np.uint8)
        groups = portions(np.diff(ends, prepend=0), threads)
        counted = np.zeros((len(groups), widest), np.int64)
        given = readonly(symbols), ends, bits, stops, lengths, estimates
        work = [
            partial(_find_codes, *given, at.start, at.stop, counts)
            for at, counts in zip(groups, counted, strict=True)
        ]
        if not all(run_all(work, threads)):
            raise ValueError("a symbol needs more bits than its run has")
        return cls(estimates, counted.sum(axis=0), lengths, stops)

    def code(self, run: int) -> Code:
        """The code of one run."""
        begin = int(self.ends[run - 1]) if run else 0
        return Code(self.lengths[begin : self.ends[run]], float(self.estimates[run]))


@njit(nogil=True, cache=True)
def _estimate(counts, limit, lengths):  # type: ignore[no-untyped-def]
    """Finds lengths, uint8 [symbols], zeros; returns about how many bytes a section takes."""
    several = find_lengths(counts, limit, lengths) > 1
    bits = np.empty(_TOKENS * counts.size + _SPARE_TOKENS, np.uint8)
    codebook = (_write_tokens(lengths, limit, bits) + 7) // 8
    k, coded = np.int64(0), np.int64(0)
    for i in range(counts.size):
        k += counts[i]
        coded += counts[i] * np.int64(lengths[i])
    return codebook + (2.5 * ((k + STREAM - 1) // STREAM) + coded / 8 if several else 0.0)


@njit(nogil=True, cache=True)
def _find_codes(symbols, ends, bits, stops, lengths, estimates, low, high, counted):  # type: ignore[no-untyped-def]
    """Codes of runs `low` up to `high`; adds frequencies to `counted`; whether all symbols are in range."""
    good, begin = True, ends[low - 1] if low else np.int64(0)
    for run in range(low, high):
        size = np.int64(1) << bits[run]
        counts, run_symbols = np.zeros((4, size), np.int64), symbols[begin : ends[run]]
        seen, mask = np.int64(0), size - 1
        for i in range(run_symbols.size):  # in four tables: equal neighbours need not wait for each other
            symbol = np.int64(run_symbols[i])
            seen |= symbol
            counts[i & 3, symbol & mask] += 1
        total = counts[0] + counts[1] + counts[2] + counts[3]
        good &= seen <= mask
        counted[:size] += total
        limit = min(max(np.int64(14), bits[run] + 3), np.int64(_LONGEST))
        estimates[run] = _estimate(total, limit, lengths[stops[run] - size : stops[run]])
        begin = ends[run]
    return good


def _streams(k: int, lengths: NDArray[np.uint8]) -> int:
    return -(-k // STREAM) if np.count_nonzero(lengths) > 1 else 0


def plan(symbols: Symbols, code: Code, threads: int = 1) -> Section:
    """The section of symbols, uint8 or uint16 [k], 0 < k < 2^32, all of which have a code.

    Writing it raises ValueError if symbols have changed.
    """
    sizes = np.empty(_streams(symbols.size, code.lengths), np.uint16)  # none where one symbol alone occurs
    run_shares(partial(_measure, symbols, code.lengths, sizes), sizes.size, threads, least=_LEAST_STREAMS)
    size = code.codebook.size + sizes.nbytes + int(sizes.sum(dtype=np.int64))
    return Section(size, partial(_write, symbols, code, sizes, threads))


def _starts(begin: int, stream_bytes: NDArray[np.uint16]) -> NDArray[np.int64]:
    return np.cumsum(np.concatenate(([begin], stream_bytes)), dtype=np.int64)


def _write(symbols: Symbols, code: Code, stream_bytes: NDArray[np.uint16], threads: int, out: Bytes) -> None:
    table = code.codebook.size
    table_end = table + stream_bytes.nbytes
    out[:table] = code.codebook
    out[table:table_end] = stream_bytes.astype("<u2").view(np.uint8)
    entries, group = code_entries(code.lengths), _group_of(code.lengths.size.bit_length() - 1)
    write = partial(_write_streams, symbols, entries, group, _starts(table_end, stream_bytes), out)
    if not all(run_shares(write, stream_bytes.size, threads, least=_LEAST_STREAMS)):
        raise ValueError("these are not the symbols that were planned")


def decode(body: Bytes, bits: int, k: int, threads: int = 1) -> tuple[Symbols, int]:
    """Reads the section that an untrusted body, uint8, begins with: k symbols, at least 1, of 1 to 16 bits.

    Returns:
        The symbols [k], each below 2^bits, of the type that `bits` asks for; bytes of the section.

    Raises:
        CorruptMessage: no section of k symbols; then nothing was made for them.
    """
    lengths, at = read_codebook(body, 1 << bits, longest(bits))
    table_end = at + 2 * _streams(k, lengths)
    if table_end > body.size:
        raise CorruptMessage(f"symbols: the table of stream lengths ends at byte {table_end} of {body.size}")
    # Through bytes: a table may begin at an odd address.
    starts = _starts(table_end, np.frombuffer(body[at:table_end].tobytes(), "<u2"))
    end = int(starts[-1])
    if end > body.size:
        raise CorruptMessage(f"symbols: {body.size} bytes of Huffman codes, their table says {end}")
    if starts.size == 1:
        return np.full(k, lengths.argmax(), symbol_type(bits)), end
    symbols: Symbols = np.empty(k, symbol_type(bits))
    # A table of uint16 for up to 1024 symbols fits the first-level cache.
    narrow, section = lengths.size <= 1 << 16 - LENGTH_BITS, body[:end]
    table = np.empty(1 << int(lengths.max()), np.uint16 if narrow else np.uint32)
    _fill_table(code_entries(lengths), table)
    read = partial(_read_streams, section, starts, table, _group_of(bits), symbols)
    if not all(run_shares(read, starts.size - 1, threads, _SIDE_BY_SIDE, _LEAST_STREAMS)):
        raise CorruptMessage("symbols: a stream of Huffman codes does not end where its length says")
    return symbols, end
