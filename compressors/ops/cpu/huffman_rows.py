"""Huffman sections of many parameters in one call: planned, written, read. `huffman.py` has the bytes.

For symbols of up to 8 bits. A code of more takes so long to build that a call for each does not matter.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..offsets import Numbers
from . import huffman
from .huffman import STREAM, group_of, plan_in_one_call, read_streams, write_streams
from .huffman_code import fill_entries, fill_table, longest, read_tokens
from .threads import portions, run_all

MOST_BITS = 8

_LARGE = 1 << 17
"""Symbols that several threads share, if there are any."""


@dataclass(frozen=True, eq=False)
class HuffmanRows:
    """Sections that are ready to be written.

    Attributes:
        symbols: uint8, of all parameters.
        begins: int64 [m], where each one's begin.
        counts: int64 [m], how many there are.
        bits: of a symbol.
        lengths: uint8 [m, 2^bits], each code's lengths.
        codebooks: uint8 [m, more than enough], the lengths written down.
        stream_bytes: uint16, of all streams.
        plans: int64 [m, 4]: bytes of the codebook; first of the streams; how many; bytes of the section.
        apart: plans of large parameters, which threads share.
        threads: how many may work at once.
    """

    symbols: NDArray[np.uint8]
    begins: Numbers
    counts: Numbers
    bits: int
    lengths: NDArray[np.uint8]
    codebooks: NDArray[np.uint8]
    stream_bytes: NDArray[np.uint16]
    plans: Numbers
    apart: dict[int, huffman.HuffmanPlan]
    threads: int

    @property
    def sizes(self) -> Numbers:
        """int64 [m], bytes of each section."""
        return self.plans[:, 3]

    def write(self, which: Numbers, out: NDArray[np.uint8], ats: Numbers) -> None:
        """Writes some of the sections.

        Args:
            which: their numbers, ascending.
            out: uint8.
            ats: where each of them begins there.

        Raises:
            ValueError: symbols have changed since they were planned.
        """
        begins, counts = self.begins[which], self.counts[which]
        for place, number in enumerate(which.tolist()):
            if number in self.apart:
                at, plan = ats[place], self.apart[number]
                symbols = self.symbols[begins[place] : begins[place] + counts[place]]
                huffman.encode(plan, symbols, out[at : at + plan.size], self.threads)
        together = ~np.isin(which, [*self.apart]) if self.apart else np.ones(which.size, np.bool_)
        which, begins, counts, ats = which[together], begins[together], counts[together], ats[together]
        work = [
            partial(
                _write_rows,
                *(self.symbols, begins[at], counts[at], group_of(self.bits)),
                *(self.lengths, self.codebooks, self.stream_bytes, self.plans, which[at], out, ats[at]),
            )
            for at in portions(counts, self.threads)
        ]
        if not all(run_all(work, self.threads)):
            raise ValueError("these are not the symbols that were planned")


def plan_rows(
    symbols: NDArray[np.uint8], begins: Numbers, counts: Numbers, bits: int, threads: int
) -> HuffmanRows:
    """`huffman.plan` for many parameters; for attributes see `HuffmanRows`.

    Raises:
        ValueError: a symbol of 2^bits or more.
    """
    m = begins.size
    streams = -(-counts // STREAM)
    firsts = np.cumsum(streams) - streams
    lengths = np.empty((m, 1 << bits), np.uint8)
    codebooks = np.empty((m, (2 << bits) + 6), np.uint8)
    stream_bytes, plans = np.empty(int(streams.sum()), np.uint16), np.empty((m, 4), np.int64)
    plans[:, 1] = firsts
    apart = {
        number: huffman.plan(symbols[begins[number] : begins[number] + counts[number]], bits, threads)
        for number in (np.flatnonzero(counts >= _LARGE).tolist() if threads > 1 else [])
    }
    together = np.setdiff1d(np.arange(m), [*apart]) if apart else np.arange(m)
    work = [
        partial(
            _plan_rows,
            *(symbols, begins, counts, bits, longest(bits)),
            *(lengths, codebooks, stream_bytes, plans, together[at]),
        )
        for at in portions(counts[together], threads)
    ]
    seen = np.array(run_all(work, threads), np.uint64)
    if (seen.view(np.uint8) >> bits).any():
        raise ValueError(f"a symbol needs more than {bits} bits")
    for number, plan in apart.items():
        plans[number, 3] = plan.size
    return HuffmanRows(symbols, begins, counts, bits, lengths, codebooks, stream_bytes, plans, apart, threads)


def read_rows(
    body: NDArray[np.uint8],
    begins: Numbers,
    ends: Numbers,
    bits: int,
    symbols: NDArray[np.uint8],
    ats: Numbers,
    counts: Numbers,
    threads: int,
) -> bool:
    """`huffman.decode` for many parameters, but that it only says whether all sections are valid.

    Args:
        body: uint8, untrusted.
        begins: int64 [m], where each section begins.
        ends: int64 [m], where it ends.
        bits: of a symbol.
        symbols: uint8; receives the symbols.
        ats: int64 [m], where each parameter's begin there.
        counts: int64 [m], how many there are, at least 1.
        threads: how many may work at once.
    """
    apart = counts >= _LARGE if threads > 1 else np.zeros(counts.size, np.bool_)
    for i in np.flatnonzero(apart).tolist():
        try:
            own = huffman.decode(body[begins[i] : ends[i]], bits, int(counts[i]), threads)
        except CorruptMessage:
            return False
        symbols[ats[i] : ats[i] + counts[i]] = own
    begins, ends, ats, counts = begins[~apart], ends[~apart], ats[~apart], counts[~apart]
    work = [
        partial(
            _read_rows,
            *(body, begins[at], ends[at], bits, longest(bits), group_of(bits), symbols, ats[at], counts[at]),
        )
        for at in portions(counts, threads)
    ]
    return all(run_all(work, threads))


@njit(nogil=True, cache=True)
def _plan_rows(  # type: ignore[no-untyped-def]
    symbols, begins, counts, bits, limit, lengths, codebooks, stream_bytes, plans, which
):
    seen = np.uint64(0)
    for i in which:
        own = symbols[begins[i] : begins[i] + counts[i]]
        found, code, codebook, streams = plan_in_one_call(own, bits, limit)
        seen |= found
        lengths[i] = code
        codebooks[i, : codebook.size] = codebook
        first, size = plans[i, 1], codebook.size + 2 * streams.size
        for s in range(streams.size):
            stream_bytes[first + s] = streams[s]
            size += np.int64(streams[s])
        plans[i, 0], plans[i, 2], plans[i, 3] = codebook.size, streams.size, size
    return seen


@njit(nogil=True, cache=True)
def _write_rows(  # type: ignore[no-untyped-def]
    symbols, begins, counts, group, lengths, codebooks, stream_bytes, plans, which, out, ats
):
    good, entries = True, np.empty(lengths.shape[1], np.uint32)
    for place in range(which.size):
        i, begin, at = which[place], begins[place], ats[place]
        codebook, first, streams, size = plans[i, 0], plans[i, 1], plans[i, 2], plans[i, 3]
        section = out[at : at + size]
        section[:codebook] = codebooks[i, :codebook]
        starts = np.empty(streams + 1, np.int64)
        starts[0] = codebook + 2 * streams
        for s in range(streams):
            own = stream_bytes[first + s]
            section[codebook + 2 * s], section[codebook + 2 * s + 1] = np.uint8(own), np.uint8(own >> 8)
            starts[s + 1] = starts[s] + np.int64(own)
        entries[:] = 0
        fill_entries(lengths[i], entries)
        own_symbols = symbols[begin : begin + counts[place]]
        good &= write_streams(own_symbols, entries, group, starts, 0, streams, section)
    return good


@njit(nogil=True, cache=True)
def _read_code(body, limit, lengths):  # type: ignore[no-untyped-def]
    """Reads the codebook that `body` begins with into lengths (zeros).

    Returns:
        Its bytes, or -1 where it is not valid, and how many symbols occur.
    """
    bits = read_tokens(body, limit, lengths)
    size = (bits + 7) >> 3
    if bits < 0 or size > body.size or (bits & 7 and body[size - 1] >> np.uint8(bits & 7)):
        return np.int64(-1), 0
    used, weight, longest_used = 0, np.int64(0), np.int64(0)
    for length in lengths:
        if length:
            used += 1
            weight += np.int64(1) << (limit - np.int64(length))
            longest_used = max(longest_used, np.int64(length))
    complete = weight == np.int64(1) << limit or (used == 1 and longest_used == 1)
    return size if complete else np.int64(-1), used


@njit(nogil=True, cache=True)
def _read_rows(  # type: ignore[no-untyped-def]
    body, begins, ends, bits, limit, group, symbols, ats, counts
):
    lengths, entries = np.empty(1 << bits, np.uint8), np.empty(1 << bits, np.uint32)
    table = np.empty(1 << limit, np.uint16)
    for i in range(begins.size):
        section, k = body[begins[i] : ends[i]], counts[i]
        own = symbols[ats[i] : ats[i] + k]
        lengths[:] = 0
        codebook, used = _read_code(section, limit, lengths)
        streams = -(-k // STREAM) if used > 1 else 0
        if codebook < 0 or codebook + 2 * streams > section.size:
            return False
        starts = np.empty(streams + 1, np.int64)
        starts[0] = codebook + 2 * streams
        for s in range(streams):
            at = codebook + 2 * s
            starts[s + 1] = starts[s] + (np.int64(section[at]) | np.int64(section[at + 1]) << 8)
        if starts[streams] != section.size:
            return False
        if streams == 0:
            own[:] = np.argmax(lengths)
            continue
        entries[:] = 0
        fill_entries(lengths, entries)
        own_table = table[: 1 << np.int64(lengths.max())]
        fill_table(entries, own_table)
        if not read_streams(section, starts, 0, streams, own_table, group, own):
            return False
    return True
