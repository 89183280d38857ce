"""Huffman-coded symbols on a device; the bytes are those of `kernels.huffman`.

The code is made from the counts on the host, by `kernels.huffman_code`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..bitpack import symbol_type
from ..huffman import STREAM
from ..huffman_code import code_entries, code_lengths, decode_table, longest, read_codebook, write_codebook
from .copying import copy_bytes
from .faults import Faults, raise_for
from .runtime import Runtime

_THREADS, _TABLE_THREADS = 256, 1024
_GROUP = 8
"""Symbols that a thread counts at a time."""
_MOST_BLOCKS = 1024
"""Of a histogram: enough to fill a GPU, few enough that adding up their counts takes no time."""
_READERS = 128
"""Threads of a block that reads a stream."""


@dataclass(frozen=True, eq=False)
class HuffmanPlan:
    """What is known of a section before it is written.

    Attributes:
        symbols: uint8 or uint16 [k] on the device.
        bits: of a symbol.
        codebook: uint8 on the host, the code's lengths written down.
        entries: uint32 [2^bits] on the device, code << 6 | length.
        starts: int64 [streams + 1] on the device, where streams begin behind their table, and end.
        streams: how many; 0 where one symbol alone occurs.
        size: bytes of the section, exactly.
    """

    symbols: Any
    bits: int
    codebook: NDArray[np.uint8]
    entries: Any
    starts: Any
    streams: int
    size: int


def _streams(k: int, lengths: NDArray[np.uint8]) -> int:
    return -(-k // STREAM) if np.count_nonzero(lengths) > 1 else 0


def histogram(runtime: Runtime, symbols: Any, bits: int) -> NDArray[np.int64]:
    """How often each of the 2^bits symbols occurs, int64 [2^bits] on the host. Waits once.

    Args:
        runtime: the device.
        symbols: uint8 (bits up to 8) or uint16 [k] on it; k < 2^32.
        bits: 1 to 16.

    Raises:
        ValueError: symbols of another type than `bits` asks for, or one of 2^bits or more.
    """
    dtype = np.dtype(symbol_type(bits))
    if symbols.dtype != dtype:
        raise ValueError(f"symbols of {bits} bits are {dtype}, not {symbols.dtype}")
    k = int(symbols.size)
    counts = runtime.zeros((1 << bits) + 1, np.uint32)  # the last: faults
    blocks = min(-(-k // (_THREADS * _GROUP)), _MOST_BLOCKS)
    arguments = (symbols, k, bits, counts, counts[1 << bits :])
    runtime.launch("huffman", f"histogram_{dtype}", blocks, _THREADS, *arguments)
    fetched: NDArray[np.int64] = runtime.fetch(counts).astype(np.int64)
    raise_for(int(fetched[-1]))
    return fetched[:-1]


def plan(runtime: Runtime, symbols: Any, bits: int) -> HuffmanPlan:
    """Builds the code for these symbols and measures every stream.

    Waits twice: the counts make the code, and the code the size. Arguments and errors as for `histogram`.
    """
    lengths = code_lengths(histogram(runtime, symbols, bits), longest(bits))
    k = int(symbols.size)
    codebook = write_codebook(lengths, longest(bits)) if k else np.empty(0, np.uint8)
    streams = _streams(k, lengths)
    entries, starts = runtime.place(code_entries(lengths)), runtime.empty(streams + 1, np.int64)
    size = codebook.size
    if streams:
        sizes, total = runtime.empty(streams, np.uint32), runtime.empty(1, np.int64)
        measure = (symbols, k, bits, entries, sizes)
        runtime.launch("huffman", f"measure_{symbols.dtype}", streams, _THREADS, *measure)
        runtime.launch("huffman", "find_starts", 1, _TABLE_THREADS, sizes, streams, starts, total)
        size += 2 * streams + int(runtime.fetch(total)[0])
    return HuffmanPlan(symbols, bits, codebook, entries, starts, streams, size)


def encode(runtime: Runtime, plan: HuffmanPlan, out: Any) -> None:
    """Writes the section. Does not wait.

    Args:
        runtime: the device.
        plan: of the symbols, which are still the same.
        out: uint8 of exactly `plan.size` bytes, whatever they are, at any address.

    Raises:
        ValueError: out is of another length.
    """
    if out.size != plan.size:
        raise ValueError(f"{out.size} bytes are given, the section takes {plan.size}")
    split = plan.codebook.size
    copy_bytes(runtime, runtime.place(plan.codebook), out[:split])
    table, streams = out[split:], out[split + 2 * plan.streams :]
    arguments = (plan.symbols, int(plan.symbols.size), plan.bits, plan.entries, plan.starts, table, streams)
    runtime.launch("huffman", f"write_{plan.symbols.dtype}", plan.streams, _THREADS, *arguments)


def _fetch_head(
    runtime: Runtime, body: Any, bits: int, k: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The code's lengths, and where each stream begins (by what the head says) and the last one ends."""
    # No valid codebook is longer: a symbol's token has up to 16 bits, and a gap's no more than its symbols'.
    most = 2 * (1 << bits) + 8 + 2 * -(-k // STREAM)
    head = runtime.fetch(body[: min(int(body.size), most)])
    lengths, at = read_codebook(head, 1 << bits, longest(bits))
    table_end = at + 2 * _streams(k, lengths)
    if table_end > body.size:
        raise CorruptMessage(f"the table of stream lengths ends at byte {table_end} of {body.size}")
    sizes = np.frombuffer(head[at:table_end].tobytes(), "<u2")
    return lengths, np.cumsum(np.concatenate(([table_end], sizes)), dtype=np.int64)


def decode(runtime: Runtime, body: Any, bits: int, k: int, faults: Faults) -> Any:
    """Reads a section. Waits once, for the codebook and the table of the streams' lengths.

    Args:
        runtime: the device.
        body: uint8, at any address: the section and nothing else.
        bits: of a symbol, 1 to 16.
        k: how many symbols.
        faults: learns of a stream that is not valid.

    Returns:
        The symbols on the device, uint8 (bits up to 8) or uint16 [k], each below 2^bits.

    Raises:
        CorruptMessage: no section of k symbols, by its head.
    """
    dtype = np.dtype(symbol_type(bits))
    if k == 0:
        if body.size:
            raise CorruptMessage(f"{body.size} bytes for no symbols")
        return runtime.empty(0, dtype)
    lengths, starts = _fetch_head(runtime, body, bits, k)
    if starts[-1] != body.size:
        raise CorruptMessage(f"{body.size} bytes of Huffman codes, their table says {starts[-1]}")
    symbols = runtime.empty(k, dtype)
    streams = starts.size - 1
    if streams == 0:
        blocks = -(-k // (_THREADS * _GROUP))
        runtime.launch("huffman", f"repeat_{dtype}", blocks, _THREADS, int(lengths.argmax()), k, symbols)
        return symbols
    table = decode_table(lengths).astype(np.uint16 if bits <= 8 else np.uint32, copy=False)
    mask, shortest = table.size - 1, int(lengths[lengths > 0].min())
    read = (body, runtime.place(starts), k, runtime.place(table), mask, shortest, symbols, faults.array)
    runtime.launch("huffman", f"read_{dtype}", streams, _READERS, *read)
    return symbols
