"""A message: one update as bytes, with a header that describes it and a checksum over both.

Header, 32 bytes, little endian:

| offset | type | field |
| --- | --- | --- |
| 0 | 2 bytes | magic, `tg` |
| 2 | u8 | version, 1 |
| 3 | u8 | form: 1 wgt, 2 bgt, 3 qgt, 4 strom, 5 f32, 6 fp16, 7 bf16, 8 fp8, 9 linear, 10 quantile |
| 4 | u8 | codec: 0 raw, 1 packed32, 2 bitmap, 3 golomb_rice, 4 every, 5 chunked; 128 to 255 others' |
| 5 | u8 | state: 0 an update; 1 a gradient that was not finite, without a body |
| 6 | u8 | symbols: 0 bit-packed (or none), 1 Huffman coded |
| 7 | u8 | 0 |
| 8 | u32 | n, elements of the gradient |
| 12 | u32 | k, elements sent; in state 1 the ordinal of the parameter that was not finite |
| 16 | f32 | tau; 0 for the forms 5 to 10 |
| 20 | u64 | length of the body |
| 28 | u32 | CRC-32 of header (with 0 here) and body |
"""

import math
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from ..config.base import LARGEST_TAU, SMALLEST_TAU
from ..errors import CorruptMessage
from ..ops.array import Bytes
from ..ops.cpu.ops import CPU, CpuOps
from ..ops.cpu.wire import Payload, check_crc
from .codecs import OURS, PlannedValues, codec_by_code, codec_by_name, plan_values
from .codecs.base import Codec, Head, Measured
from .codecs.values import Symbols
from .forms import FORM_OF_CODE, FORMS, Form
from .update import Update

VERSION = 1
LARGEST_N = 2**31 - 1
_HEADER = struct.Struct("<2sBBBBBBIIfQI")
HEADER_BYTES = _HEADER.size
HEADER = np.dtype(
    [
        *(("magic", "S2"), ("version", "u1"), ("form", "u1"), ("codec", "u1"), ("state", "u1")),
        *(("symbols", "u1"), ("zero", "u1"), ("n", "<u4"), ("k", "<u4"), ("tau", "<f4")),
        *(("length", "<u8"), ("crc", "<u4")),
    ]
)
"""The same for many headers at once."""
_CRC = struct.Struct("<I")
_STATE_AT = 5
_CRC_AT = HEADER_BYTES - 4
_LENGTH = struct.Struct("<Q")
LENGTH_AT = 20
"""Where in a header the length of the body stands."""
MAGIC = b"tg"
_UPDATE, _NONFINITE = 0, 1
SYMBOLS: tuple[Symbols, ...] = ("raw", "huffman")


@dataclass(frozen=True)
class NonFinite:
    """A refusal, instead of an update: the gradient held NaN or Inf."""

    form: Form
    n: int
    tau: np.float32
    ordinal: int
    """Which of the bucket's parameters, from 0."""


def write(update: Update, codec: str = "auto", symbols: str = "auto", ops: CpuOps = CPU) -> Bytes:
    """The update as a message.

    Args:
        update: at most LARGEST_N elements.
        codec: a codec's name, or `auto` for the smallest.
        symbols: `raw`, `huffman`, or `auto` for the smaller.
        ops: of the CPU.

    Returns:
        uint8 in the CPU's memory, HEADER_BYTES and the body.

    Raises:
        ValueError: the update has more elements than a message can hold, or the codec cannot write it.
    """
    return write_planned([plan_all([update], [codec], symbols, ops)], ops)


class Planned(ABC):
    """Messages that are ready to be written, one after the other."""

    sizes: list[int]
    """Bytes of each, with its header."""

    @abstractmethod
    def write(self, payload: Payload, begin: int, ops: CpuOps) -> None:
        """Writes them from byte `begin` on, but for their checksums."""


def write_planned(plans: Sequence[Planned], ops: CpuOps) -> Bytes:
    """Messages one after the other, uint8."""
    sizes = [size for planned in plans for size in planned.sizes]
    ends = list(accumulate(sizes))
    payload, begin = ops.payload(ends[-1] if ends else 0), 0
    for planned in plans:
        planned.write(payload, begin, ops)
        begin += sum(planned.sizes)
    payload.seal([0, *ends][: len(ends)], ends)
    return payload.array


@dataclass(frozen=True, eq=False)
class _Listed(Planned):
    """Updates of any kind."""

    updates: Sequence[Update]
    measured: Sequence[Measured]
    chosen: "Sequence[tuple[Measured, int, int]]"
    """By update; see `_choose`."""
    values: Sequence[PlannedValues]
    """By update."""
    sizes: list[int]

    def write(self, payload: Payload, begin: int, ops: CpuOps) -> None:
        """See `Planned.write`."""
        ends = [begin + end for end in accumulate(self.sizes)]
        for one in self.measured:
            mine = [
                (number, end - size)
                for (by, number, size), end in zip(self.chosen, ends, strict=True)
                if by is one
            ]
            if mine:
                one.write([number for number, _ in mine], payload, [at for _, at in mine], ops)
        # What follows the positions is written after them: a section may have overwritten it.
        for update, (by, _, size), planned, end in zip(
            self.updates, self.chosen, self.values, ends, strict=True
        ):
            codec = by.codec
            if codec.with_values and planned.size:
                planned.write(payload, end - planned.size, ops)
            coded = planned.symbols if codec.with_values else "raw"
            fields = _fields(update.form, codec.code, _UPDATE, coded, update.n, update.k, update.tau)
            payload.put(_HEADER.pack(*fields, size, 0), end - size - HEADER_BYTES)


def plan_all(updates: Sequence[Update], codecs: Sequence[str], symbols: str, ops: CpuOps) -> Planned:
    """How updates are going to be written.

    Args:
        updates: what to write.
        codecs: of each, a name or `auto`.
        symbols: of all, `raw`, `huffman` or `auto`.
        ops: of the CPU.

    Raises:
        ValueError: see `write`.
    """
    groups = _able(updates, codecs)
    values = [
        plan_values(update, "raw" if name == "raw" else symbols, ops)
        for update, name in zip(updates, codecs, strict=True)
    ]
    measured = [codec.measure([updates[i] for i in mine], ops) for codec, mine in groups]
    chosen = _choose(groups, measured, values)
    return _Listed(updates, measured, chosen, values, [HEADER_BYTES + size for _, _, size in chosen])


_Groups = list[tuple[Codec, list[int]]]
"""Codecs, and which updates, all with signs apart or none, each may write."""


def _able(updates: Sequence[Update], codecs: Sequence[str]) -> _Groups:
    """Which codecs may write which updates."""
    able: dict[tuple[int, str, bool], tuple[Codec, list[int]]] = {}
    for i, (update, name) in enumerate(zip(updates, codecs, strict=True)):
        if update.n > LARGEST_N:
            raise ValueError(f"n = {update.n}: a message holds at most {LARGEST_N} elements")
        among = OURS if name == "auto" else (codec_by_name(name),)
        fitting = [codec for codec in among if codec.fits(update)]
        if not fitting:
            raise ValueError(f"{name} cannot write an update of {update.k} of {update.n} {update.form}")
        for codec in fitting:
            key = codec.turn, codec.name, FORMS[update.form].sign_apart
            able.setdefault(key, (codec, []))[1].append(i)
    return [able[key] for key in sorted(able)]


def _choose(
    groups: _Groups, measured: Sequence[Measured], values: Sequence[PlannedValues]
) -> list[tuple[Measured, int, int]]:
    """The shortest body for each update, the first of several: by what, its number there, and its size."""
    best: dict[int, tuple[Measured, int, int]] = {}
    for (_, mine), one in zip(groups, measured, strict=True):
        for number, i in enumerate(mine):
            size = one.sizes[number] + (values[i].size if one.codec.with_values else 0)
            if i not in best or size < best[i][2]:
                best[i] = one, number, size
    return [best[i] for i in range(len(best))]


def write_nonfinite(refusal: NonFinite) -> Bytes:
    """A message that says why there is no update; uint8 [HEADER_BYTES]."""
    message = np.empty(HEADER_BYTES, np.uint8)
    fields = _fields(refusal.form, 0, _NONFINITE, "raw", refusal.n, refusal.ordinal, refusal.tau)
    _HEADER.pack_into(message.data, 0, *fields, 0, 0)
    _CRC.pack_into(message.data, _CRC_AT, zlib.crc32(message.data))
    return message


def is_refusal(message: Bytes) -> bool:
    """Whether these bytes claim to be what `write_nonfinite` writes; nothing else of them is checked."""
    return message.size >= HEADER_BYTES and int(message[_STATE_AT]) == _NONFINITE


def is_alone(payload: Bytes) -> bool:
    """Whether the first message's length, if there is one, says that it ends with the payload."""
    if payload.size < HEADER_BYTES:
        return False
    (length,) = _LENGTH.unpack_from(payload.data, LENGTH_AT)
    return bool(HEADER_BYTES + length == payload.size)


def _fields(
    form: Form, codec: int, state: int, symbols: Symbols, n: int, k: int, tau: np.float32
) -> tuple[Any, ...]:
    """A header's, up to the length."""
    return MAGIC, VERSION, FORMS[form].code, codec, state, SYMBOLS.index(symbols), 0, n, k, tau


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Header:
    """The fields of a header as they stand there, whatever they are, but for magic, version and length."""

    form: int
    codec: int
    state: int
    symbols: int
    zero: int
    n: int
    k: int
    tau: float
    crc: int


def open_header(header: Bytes, length: int) -> Header:
    """Takes a header apart.

    Args:
        header: uint8, HEADER_BYTES or more.
        length: of the body behind it.

    Raises:
        CorruptMessage: it is none of this version, or of a body of another length.
    """
    magic, version, form, codec, state, symbols, zero, n, k, tau, said, crc = _HEADER.unpack_from(header.data)
    if magic != MAGIC:
        raise CorruptMessage(f"it begins with {bytes(magic)!r}, a message with {MAGIC!r}")
    if version != VERSION:
        raise CorruptMessage(f"version {version}; this program reads version {VERSION}")
    if said != length:
        raise CorruptMessage(f"the header says {said} bytes of body, there are {length}")
    return Header(form, codec, state, symbols, zero, n, k, tau, crc)


def interpret(header: Header, length: int, n: int) -> tuple[Codec, Head] | NonFinite:
    """What a header says of its body, or that there is none because a gradient was not finite.

    Args:
        header: one whose checksum is right.
        length: of the body.
        n: elements that the update must have.

    Raises:
        CorruptMessage: a field is out of its range, or n is another.
    """
    if header.form not in FORM_OF_CODE:
        raise CorruptMessage(f"form {header.form} is unknown; known are {sorted(FORM_OF_CODE)}")
    form, k, tau = FORM_OF_CODE[header.form], header.k, header.tau
    if header.zero or header.symbols >= len(SYMBOLS) or header.n > LARGEST_N:
        raise CorruptMessage(f"reserved bits are set, or n = {header.n} is out of range")
    if header.n != n:
        raise CorruptMessage(f"an update of {header.n} elements where {n} are due")
    no_tau = tau == 0 and math.copysign(1, tau) > 0
    if not (SMALLEST_TAU <= tau <= LARGEST_TAU if FORMS[form].has_tau else no_tau):
        raise CorruptMessage(f"tau = {tau} is out of range for {form}")
    if header.state == _NONFINITE:
        if length or header.codec or header.symbols:
            raise CorruptMessage("a message without an update has a body or a codec")
        return NonFinite(form, n, np.float32(tau), k)
    if header.state != _UPDATE:
        raise CorruptMessage(f"state {header.state} is unknown")
    codec = codec_by_code(header.codec)
    if k > n:
        raise CorruptMessage(f"{k} elements sent of {n}")
    return codec, Head(form, n, k, np.float32(tau), SYMBOLS[header.symbols])


def read(message: Bytes, n: int, ops: CpuOps = CPU) -> Update | NonFinite:
    """The update that a message holds, checked in every part.

    Args:
        message: uint8, exactly the message. The update may share its memory.
        n: elements that the update must have. Nothing larger than them and the message is allocated.
        ops: of the CPU.

    Raises:
        CorruptMessage: it is no message that `write` or `write_nonfinite` could have made, or of another n.
    """
    if message.size < HEADER_BYTES:
        raise CorruptMessage(f"{message.size} bytes are less than a header, which has {HEADER_BYTES}")
    return read_all([message], [n], ops)[0]


def read_all(
    messages: Sequence[Bytes], elements: Sequence[int], ops: CpuOps = CPU
) -> list[Update | NonFinite]:
    """The updates of many messages.

    Args:
        messages: uint8, HEADER_BYTES or more each.
        elements: n of each one's update.
        ops: of the CPU.

    Raises:
        CorruptMessage: see `read`; about one of those that are not valid.
    """
    opened = [_open(*each) for each in zip(messages, elements, strict=True)]
    updates: list[Update | NonFinite] = []
    for way, group in groupby(zip(opened, messages, strict=True), key=lambda each: _way(each[0])):
        mine = list(group)
        if way is None:
            updates += [what for what, _ in mine if isinstance(what, NonFinite)]
            continue
        heads = [what[1] for what, _ in mine if not isinstance(what, NonFinite)]
        updates += way[0].read_all([message[HEADER_BYTES:] for _, message in mine], heads, ops)
    return updates


def _way(what: tuple[Codec, Head] | NonFinite) -> tuple[Codec, Form] | None:
    """What messages that are read together have in common."""
    return None if isinstance(what, NonFinite) else (what[0], what[1].form)


def _open(message: Bytes, n: int) -> tuple[Codec, Head] | NonFinite:
    """What the header says."""
    length = message.size - HEADER_BYTES
    header = open_header(message, length)
    check_crc(message, header.crc)
    return interpret(header, length, n)
