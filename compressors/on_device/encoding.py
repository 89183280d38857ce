"""Updates into messages on a device: what `wire.message.write` does on the CPU, for a whole bucket at once.

Lengths come to the host, which chooses the codecs, makes headers, heads and codebooks, and puts them in their
places; bodies and checksums never leave the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops.cpu.bitpack import packed_bytes
from ..ops.cpu.golomb_rice import block_log2s
from ..ops.cuda import bitpack, golomb_rice, huffman, positions
from ..ops.cuda.copying import copy_bytes
from ..ops.cuda.crc32 import Checksums
from ..ops.cuda.faults import Faults
from ..ops.cuda.payloads import Pieces
from ..ops.cuda.raw import write_raw
from ..ops.cuda.returns import Returns, Steps, run_together
from ..ops.cuda.runtime import Runtime
from ..wire.codecs import CODECS, Codec, codec_by_name
from ..wire.codecs.chunked import HEAD_BYTES as CHUNK_HEAD
from ..wire.codecs.chunked import chunk_head
from ..wire.codecs.values import LEVEL_BITS, SizedValues, quantizer_head
from ..wire.forms import FORMS
from ..wire.message import HEADER_BYTES, LARGEST_N, unsealed_header
from ..wire.quantized import Quantized
from ..wire.update import Update


@dataclass(frozen=True)
class Wanted:
    """An update to be written."""

    update: Update
    codec: str = "auto"
    symbols: str = "auto"


class Target:
    """The payload that messages are written to."""

    def __init__(self, runtime: Runtime, size: int) -> None:
        """A payload of so many bytes, zeros."""
        self.runtime, self.payload = runtime, runtime.zeros(size, np.uint8)
        self.pieces = Pieces()
        self.faults = Faults(runtime)
        """Of symbols that are too wide, which no pass makes."""

    def part(self, at: int, size: int) -> Any:
        """Its bytes from `at` on."""
        return self.payload[at : at + size]


class _Coded(ABC):
    """Values, or their symbols, that are ready to be written."""

    @abstractmethod
    def write(self, target: Target, at: int) -> None:
        """Writes them to the payload's bytes from `at` on."""


@dataclass(frozen=True)
class _Plain(_Coded):
    array: Any

    def write(self, target: Target, at: int) -> None:
        copy_bytes(target.runtime, self.array, target.part(at, int(self.array.nbytes)))


@dataclass(frozen=True)
class _Packed(_Coded):
    symbols: Any
    bits: int

    def write(self, target: Target, at: int) -> None:
        out = target.part(at, packed_bytes(int(self.symbols.size), self.bits))
        bitpack.pack(target.runtime, self.symbols, self.bits, out, target.faults)


@dataclass(frozen=True)
class _HuffmanCoded(_Coded):
    plan: huffman.HuffmanPlan

    def write(self, target: Target, at: int) -> None:
        target.pieces.add(self.plan.codebook, at)
        huffman.write_streams(target.runtime, self.plan, target.part(at, self.plan.size))


@dataclass(frozen=True)
class _Values(SizedValues):
    """Values that are ready to be written, a quantizer's head and tables before them."""

    quantized: Quantized | None
    coded: _Coded

    def write(self, target: Target, at: int) -> None:
        """Writes them to the payload's bytes from `at` on."""
        if self.quantized is not None:
            head = quantizer_head(self.quantized)
            target.pieces.add(head, at)
            at += head.size
            for table in self.quantized.tables():
                _Plain(table).write(target, at)
                at += int(table.nbytes)
        self.coded.write(target, at)


def _plan_values(runtime: Runtime, update: Update, symbols: str, returns: Returns) -> Steps[_Values]:
    """As `wire.codecs.values.plan_values`."""
    values = update.values
    if isinstance(values, Quantized):
        coded = yield from _plan_symbols(runtime, values.symbols, values.bits, symbols, returns)
        tables = quantizer_head(values).size + sum(int(table.nbytes) for table in values.tables())
        return _Values(coded.symbols, tables + coded.size, values, coded.coded)
    if FORMS[update.form].symbols and update.k:
        return (yield from _plan_symbols(runtime, values, LEVEL_BITS, symbols, returns))
    return _Values("raw", int(values.nbytes), None, _Plain(values))


def _plan_symbols(runtime: Runtime, array: Any, bits: int, symbols: str, returns: Returns) -> Steps[_Values]:
    packed = packed_bytes(int(array.size), bits)
    if symbols != "raw" and array.size:
        counts = huffman.Counts(runtime, array, bits, returns)
        yield
        measured = huffman.Measured(runtime, array, bits, counts.values, returns)
        if symbols == "huffman" or measured.least < packed:
            measured.start()
            yield
            plan = measured.plan()
            if symbols == "huffman" or plan.size < packed:
                return _Values("huffman", plan.size, None, _HuffmanCoded(plan))
    return _Values("raw", packed, None, _Packed(array, bits))


@dataclass(frozen=True)
class _Planned:
    """A message that is ready to be written."""

    update: Update
    codec: Codec
    values: _Values
    rice: golomb_rice.RicePlan | None
    size: int
    """Bytes of the body."""

    def write(self, target: Target, at: int) -> None:
        """Writes it to the payload's bytes from `at` on, but for its checksum."""
        symbols = "raw" if self.codec.name == "raw" else self.values.symbols
        target.pieces.add(unsealed_header(self.update, self.codec, symbols, self.size), at)
        at += HEADER_BYTES
        if self.codec.name == "raw":
            update, body = self.update, target.part(at, self.size)
            write_raw(target.runtime, update.form, update.words, update.values, body)  # type: ignore[arg-type]
            return
        split = self.size - self.values.size
        self._write_positions(target, at, split)
        self.values.write(target, at + split)

    def _write_positions(self, target: Target, at: int, size: int) -> None:
        runtime, update, out = target.runtime, self.update, target.part(at, size)
        if self.codec.name == "golomb_rice" and self.rice is not None:
            golomb_rice.encode(runtime, self.rice, out)
        elif self.codec.name == "packed32":
            positions.write_packed32(runtime, update.words, out)
        elif self.codec.name == "bitmap":
            positions.write_bitmap(runtime, update.words, update.n, FORMS[update.form].sign_apart, out)
        elif self.codec.name == "chunked":
            chunks = update.chunks
            assert chunks is not None
            target.pieces.add(chunk_head(chunks), at)
            positions.write_indices(
                runtime, update.words, update.n, chunks.chunk, chunks.keep, out[CHUNK_HEAD:]
            )


def _plan(runtime: Runtime, wanted: Wanted, returns: Returns) -> Steps[_Planned]:
    """As the first half of `wire.message.write`."""
    update, name = wanted.update, wanted.codec
    if update.n > LARGEST_N:
        raise ValueError(f"n = {update.n}: a message holds at most {LARGEST_N} elements")
    if name != "auto" and not codec_by_name(name).fits(update):
        raise ValueError(f"{name} cannot write an update of {update.k} of {update.n} {update.form}")
    measured = None
    if name in ("auto", "golomb_rice") and update.k and update.words is not None:
        signed, log2s = FORMS[update.form].sign_apart, block_log2s(update.k)
        measured = golomb_rice.Measured(runtime, update.words, signed, log2s, returns)
    symbols = "raw" if name == "raw" else wanted.symbols
    values = yield from _plan_values(runtime, update, symbols, returns)
    rice = None
    if measured is not None:
        if not measured.fetched:
            yield
        rice = measured.plan()
    sizes = []
    for codec in CODECS if name == "auto" else [codec_by_name(name)]:
        if codec.name == "golomb_rice" and update.words is not None:
            sizes.append((codec, values.size + (0 if rice is None else rice.size)))
        elif codec.fits(update):
            sizes.append((codec, codec.size(update, values)))
    chosen, size = min(sizes, key=lambda each: each[1])
    return _Planned(update, chosen, values, rice, size)


@dataclass(frozen=True)
class Written:
    """A payload on the device."""

    payload: Any
    """uint8, one message behind the other."""
    messages: list[Any]
    """Each of them."""


def write_all(runtime: Runtime, checksums: Checksums, wanted: Sequence[Wanted], returns: Returns) -> Written:
    """Writes updates as messages; waits up to twice, also without any updates if something was asked for.

    Args:
        runtime: the device.
        checksums: of this device.
        wanted: the updates.
        returns: what others have asked for is fetched too.

    Raises:
        ValueError: see `wire.message.write`.
    """
    planned = run_together(returns, [_plan(runtime, each, returns) for each in wanted])
    returns.fetch()
    sizes = [HEADER_BYTES + each.size for each in planned]
    ends = np.cumsum(sizes, dtype=np.int64).tolist() if sizes else []
    starts = [end - size for end, size in zip(ends, sizes, strict=True)]
    target = Target(runtime, ends[-1] if ends else 0)
    for each, start in zip(planned, starts, strict=True):
        each.write(target, start)
    target.pieces.write_to(runtime, target.payload)
    if planned:
        checksums.seal(target.payload, starts, ends)
    messages = [target.payload[start:end] for start, end in zip(starts, ends, strict=True)]
    return Written(target.payload, messages)
