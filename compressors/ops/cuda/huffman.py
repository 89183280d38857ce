"""Huffman-coded symbols on a device; the bytes are those of `ops.cpu.huffman`.

The code is made from the counts on the host, by `ops.cpu.huffman_code`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..cpu import huffman_code as code
from ..cpu.bitpack import symbol_type
from ..cpu.huffman import STREAM
from ..faults import Faults, raise_for
from ..returns import Returns
from .copying import copy_bytes
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


class Counts:
    """How often each symbol occurs, on the way to the host."""

    def __init__(self, runtime: Runtime, symbols: Any, bits: int, returns: Returns) -> None:
        """Starts to count. Does not wait; for errors see `histogram`.

        Args:
            runtime: the device.
            symbols: uint8 (bits up to 8) or uint16 [k] on it; k < 2^32.
            bits: 1 to 16.
            returns: to be fetched before `values` is asked for.
        """
        dtype = np.dtype(symbol_type(bits))
        if symbols.dtype != dtype:
            raise ValueError(f"symbols of {bits} bits are {dtype}, not {symbols.dtype}")
        k = int(symbols.size)
        self._slot = returns.take((1 << bits) + 1, np.uint32)  # the last: faults
        counts = self._slot.array
        blocks = min(-(-k // (_THREADS * _GROUP)), _MOST_BLOCKS)
        arguments = (symbols, k, bits, counts, counts[1 << bits :])
        runtime.launch("huffman", f"histogram_{dtype}", blocks, _THREADS, *arguments)

    @property
    def values(self) -> NDArray[np.int64]:
        """int64 [2^bits]; raises ValueError if a symbol has more bits."""
        raise_for(int(self._slot.values[-1]))
        return self._slot.values[:-1].astype(np.int64)


def histogram(runtime: Runtime, symbols: Any, bits: int) -> NDArray[np.int64]:
    """How often each of the 2^bits symbols occurs, int64 [2^bits] on the host. Waits once.

    Args:
        runtime: the device.
        symbols: uint8 (bits up to 8) or uint16 [k] on it; k < 2^32.
        bits: 1 to 16.

    Raises:
        ValueError: symbols of another type than `bits` asks for, or one of 2^bits or more.
    """
    returns = Returns(runtime)
    counts = Counts(runtime, symbols, bits, returns)
    returns.fetch()
    return counts.values


class Measured:
    """A code made from counts, and the size of the section that it makes on its way to the host."""

    def __init__(
        self, runtime: Runtime, symbols: Any, bits: int, counts: NDArray[np.int64], returns: Returns
    ) -> None:
        """Builds the code. Does not wait.

        Args:
            runtime: the device.
            symbols: as for `Counts`.
            bits: of a symbol.
            counts: of these symbols.
            returns: receives the size when `start` is called.
        """
        self._runtime, self._symbols, self._bits = runtime, symbols, bits
        self._lengths = code.code_lengths(counts, code.longest(bits))
        k = int(symbols.size)
        self._codebook = (
            code.write_codebook(self._lengths, code.longest(bits)) if k else np.empty(0, np.uint8)
        )
        self._streams = _streams(k, self._lengths)
        code_bits = int((self._lengths.astype(np.int64) * counts).sum()) if self._streams else 0
        self.least = self._codebook.size + 2 * self._streams + -(-code_bits // 8)
        """No section of these symbols has fewer bytes."""
        self._total = returns.take(1, np.int64)

    def start(self) -> None:
        """Starts to measure the streams; `plan` may be called once what is returned was fetched."""
        runtime, symbols = self._runtime, self._symbols
        self._entries = runtime.place(code.code_entries(self._lengths))
        self._starts = runtime.empty(self._streams + 1, np.int64)
        if self._streams:
            sizes = runtime.empty(self._streams, np.uint32)
            measure = (symbols, int(symbols.size), self._bits, self._entries, sizes)
            runtime.launch("huffman", f"measure_{symbols.dtype}", self._streams, _THREADS, *measure)
            found = (sizes, self._streams, self._starts, self._total.array)
            runtime.launch("huffman", "find_starts", 1, _TABLE_THREADS, *found)

    def plan(self) -> HuffmanPlan:
        """What there is to write, and its size."""
        size = self._codebook.size + 2 * self._streams + int(self._total.values[0])
        return HuffmanPlan(
            self._symbols, self._bits, self._codebook, self._entries, self._starts, self._streams, size
        )


def plan(runtime: Runtime, symbols: Any, bits: int) -> HuffmanPlan:
    """Builds the code for these symbols and measures every stream.

    Waits twice: the counts make the code, and the code the size. Arguments and errors as for `histogram`.
    """
    returns = Returns(runtime)
    measured = Measured(runtime, symbols, bits, histogram(runtime, symbols, bits), returns)
    measured.start()
    returns.fetch()
    return measured.plan()


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
    copy_bytes(runtime, runtime.place(plan.codebook), out[: plan.codebook.size])
    write_streams(runtime, plan, out)


def write_streams(runtime: Runtime, plan: HuffmanPlan, out: Any) -> None:
    """Writes the section but for its codebook, which is the host's to write; see `encode`."""
    split = plan.codebook.size
    table, streams = out[split:], out[split + 2 * plan.streams :]
    arguments = (plan.symbols, int(plan.symbols.size), plan.bits, plan.entries, plan.starts, table, streams)
    runtime.launch("huffman", f"write_{plan.symbols.dtype}", plan.streams, _THREADS, *arguments)


def head_bytes(size: int, bits: int, k: int) -> int:
    """How many bytes of a section of k symbols, `size` long, hold its codebook and its table, at most."""
    # No valid codebook is longer: a symbol's token has up to 16 bits, and a gap's no more than its symbols'.
    return min(size, 2 * (1 << bits) + 8 + 2 * -(-k // STREAM))


def _read_head(
    head: NDArray[np.uint8], size: int, bits: int, k: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The code's lengths, and where each stream begins (by what the head says) and the last one ends."""
    lengths, at = code.read_codebook(head, 1 << bits, code.longest(bits))
    table_end = at + 2 * _streams(k, lengths)
    if table_end > size:
        raise CorruptMessage(f"the table of stream lengths ends at byte {table_end} of {size}")
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
    head = runtime.fetch(body[: head_bytes(int(body.size), bits, k)])
    return decode_behind(runtime, body, head, bits, k, faults)


def decode_behind(
    runtime: Runtime, body: Any, head: NDArray[np.uint8], bits: int, k: int, faults: Faults
) -> Any:
    """`decode` of a section whose first `head_bytes` bytes were fetched. Does not wait."""
    dtype = np.dtype(symbol_type(bits))
    if k == 0:
        if body.size:
            raise CorruptMessage(f"{body.size} bytes for no symbols")
        return runtime.empty(0, dtype)
    lengths, starts = _read_head(head, int(body.size), bits, k)
    if starts[-1] != body.size:
        raise CorruptMessage(f"{body.size} bytes of Huffman codes, their table says {starts[-1]}")
    symbols = runtime.empty(k, dtype)
    streams = starts.size - 1
    if streams == 0:
        blocks = -(-k // (_THREADS * _GROUP))
        runtime.launch("huffman", f"repeat_{dtype}", blocks, _THREADS, int(lengths.argmax()), k, symbols)
        return symbols
    table = code.decode_table(lengths).astype(np.uint16 if bits <= 8 else np.uint32, copy=False)
    mask, shortest = table.size - 1, int(lengths[lengths > 0].min())
    read = (body, runtime.place(starts), k, runtime.place(table), mask, shortest, symbols, faults.array)
    runtime.launch("huffman", f"read_{dtype}", streams, _READERS, *read)
    return symbols
