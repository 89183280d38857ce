"""A message: one update as bytes, with a header that describes it and a checksum over both.

Header, 32 bytes, little endian:

| offset | type | field |
| --- | --- | --- |
| 0 | 2 bytes | magic, `tg` |
| 2 | u8 | version, 1 |
| 3 | u8 | form: 1 wgt, 2 bgt, 3 qgt, 4 strom, 5 f32, 6 fp16, 7 bf16, 8 fp8, 9 linear, 10 quantile |
| 4 | u8 | codec: 0 raw, 1 packed32, 2 bitmap, 3 golomb_rice, 4 every, 5 chunked |
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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from ..config.base import LARGEST_TAU, SMALLEST_TAU
from ..errors import CorruptMessage
from ..ops.cpu import sparse
from .codecs import CODECS, PlannedValues, codec_by_code, codec_by_name, plan_values
from .codecs.base import Bodies, Bytes, Codec, Head
from .codecs.values import Symbols
from .forms import FORM_OF_CODE, FORMS, Form
from .update import Update

VERSION = 1
LARGEST_N = 2**31 - 1
_HEADER = struct.Struct("<2sBBBBBBIIfQI")
HEADER_BYTES = _HEADER.size
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_STATE_AT, _LENGTH_AT = 5, 20
_CRC_AT = HEADER_BYTES - 4
_MAGIC = b"tg"
_UPDATE, _NONFINITE = 0, 1
WRONG_CHECKSUM = "the checksum does not match"
_SYMBOLS: tuple[Symbols, ...] = ("raw", "huffman")
_AUTO = tuple(range(len(CODECS)))
_PLACES = {codec.name: place for place, codec in enumerate(CODECS)}


@dataclass(frozen=True)
class NonFinite:
    """Stands for an update that could not be made: the gradient held NaN or Inf."""

    form: Form
    n: int
    tau: np.float32
    ordinal: int
    """Which of the bucket's parameters, from 0."""


def write(update: Update, codec: str = "auto", symbols: str = "auto", threads: int = 1) -> Bytes:
    """The update as a message.

    Args:
        update: at most LARGEST_N elements.
        codec: a codec's name, or `auto` for the smallest.
        symbols: `raw`, `huffman`, or `auto` for the smaller.
        threads: how many may share the work.

    Returns:
        uint8, HEADER_BYTES and the body.

    Raises:
        ValueError: the update has more elements than a message can hold, or the codec cannot write it.
    """
    return write_all([update], [codec], symbols, threads).messages[0]


@dataclass(frozen=True)
class Written:
    """Messages, one behind the other.

    Attributes:
        payload: uint8, all of them.
        messages: uint8, each of them, in the payload's memory.
    """

    payload: Bytes
    messages: list[Bytes]


def write_all(
    updates: Sequence[Update], codecs: Sequence[str], symbols: str = "auto", threads: int = 1
) -> Written:
    """Updates as messages; for arguments and errors see `write`.

    Args:
        updates: what to write.
        codecs: of each.
        symbols: of all.
        threads: how many may share the work.
    """
    values = [
        plan_values(update, "raw" if name == "raw" else symbols, threads)
        for update, name in zip(updates, codecs, strict=True)
    ]
    chosen = _choose(updates, codecs, values)
    sizes = [bodies.sizes[number] for bodies, number in chosen]
    ends = list(accumulate([HEADER_BYTES + size for size in sizes]))
    payload = np.zeros(ends[-1] if ends else 0, np.uint8)
    writers: dict[Bodies, tuple[list[int], list[int]]] = {}
    for (bodies, number), size, end in zip(chosen, sizes, ends, strict=True):
        which, begins = writers.setdefault(bodies, ([], []))
        which.append(number)
        begins.append(end - size)
    for bodies, (which, begins) in writers.items():
        bodies.write(which, payload, begins)
    # Headers last: a body may have spilled into them.
    view, messages, begin = payload.data, [], 0
    for update, (bodies, _), planned, end in zip(updates, chosen, values, ends, strict=True):
        codec = bodies.codec
        coded = "raw" if codec.name == "raw" else planned.symbols
        fields = _fields(update.form, codec.code, _UPDATE, coded, update.n, update.k, update.tau)
        _HEADER.pack_into(view, begin, *fields, end - begin - HEADER_BYTES, 0)
        _CRC.pack_into(view, begin + _CRC_AT, zlib.crc32(view[begin:end]))
        messages.append(payload[begin:end])
        begin = end
    return Written(payload, messages)


def _choose(
    updates: Sequence[Update], codecs: Sequence[str], values: Sequence[PlannedValues]
) -> list[tuple[Bodies, int]]:
    """The shortest body for each update, of the codecs that may write it; the first of several."""
    able: dict[tuple[int, bool], list[int]] = {}
    for i, (update, name) in enumerate(zip(updates, codecs, strict=True)):
        if update.n > LARGEST_N:
            raise ValueError(f"n = {update.n}: a message holds at most {LARGEST_N} elements")
        among = _AUTO if name == "auto" else (_PLACES[codec_by_name(name).name],)
        fitting = [place for place in among if CODECS[place].fits(update)]
        if not fitting:
            raise ValueError(f"{name} cannot write an update of {update.k} of {update.n} {update.form}")
        for place in fitting:
            able.setdefault((place, FORMS[update.form].sign_apart), []).append(i)
    best: dict[int, tuple[Bodies, int]] = {}
    for place, signed in sorted(able):
        mine = able[place, signed]
        bodies = CODECS[place].plan([updates[i] for i in mine], [values[i] for i in mine])
        for number, i in enumerate(mine):
            if i not in best or bodies.sizes[number] < best[i][0].sizes[best[i][1]]:
                best[i] = bodies, number
    return [best[i] for i in range(len(updates))]


def write_nonfinite(refusal: NonFinite) -> Bytes:
    """A message that says why there is no update; uint8 [HEADER_BYTES]."""
    message = np.empty(HEADER_BYTES, np.uint8)
    fields = _fields(refusal.form, 0, _NONFINITE, "raw", refusal.n, refusal.ordinal, refusal.tau)
    _HEADER.pack_into(message.data, 0, *fields, 0, 0)
    _CRC.pack_into(message.data, _CRC_AT, zlib.crc32(message.data))
    return message


def is_refusal(message: Bytes) -> bool:
    """Whether these bytes want to be what `write_nonfinite` writes; nothing else of them is looked at."""
    return message.size >= HEADER_BYTES and int(message[_STATE_AT]) == _NONFINITE


def unsealed_header(update: Update, codec: Codec, symbols: Symbols, length: int) -> Bytes:
    """The header of an update's message, its checksum still 0.

    Args:
        update: what the body holds.
        codec: that wrote it.
        symbols: how its symbols stand there.
        length: of the body.
    """
    fields = _fields(update.form, codec.code, _UPDATE, symbols, update.n, update.k, update.tau)
    return np.frombuffer(_HEADER.pack(*fields, length, 0), np.uint8)


def _fields(
    form: Form, codec: int, state: int, symbols: Symbols, n: int, k: int, tau: np.float32
) -> tuple[Any, ...]:
    """A header's, up to the length."""
    return _MAGIC, VERSION, FORMS[form].code, codec, state, _SYMBOLS.index(symbols), 0, n, k, tau


def split(payload: Bytes, most: int) -> list[Bytes]:
    """Cuts a payload into the messages that it is made of, by the lengths in their headers.

    Args:
        payload: uint8, one message behind the other.
        most: how many there may be.

    Raises:
        CorruptMessage: the lengths do not add up, or there are more messages. No more of them is looked at.
    """
    messages: list[Bytes] = []
    at = 0
    while at < payload.size:
        if payload.size - at < HEADER_BYTES:
            raise CorruptMessage(
                f"{payload.size - at} bytes are less than a header, which has {HEADER_BYTES}"
            )
        (length,) = _LENGTH.unpack_from(payload.data, at + _LENGTH_AT)
        end = at + HEADER_BYTES + length
        if end > payload.size:
            raise CorruptMessage(
                f"the header says {length} bytes of body, there are {payload.size - at - HEADER_BYTES}"
            )
        if len(messages) == most:
            raise CorruptMessage(f"more than {most} messages, as many as there can be")
        messages.append(payload[at:end])
        at = end
    return messages


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
        header: uint8 [HEADER_BYTES].
        length: of the body behind it.

    Raises:
        CorruptMessage: it is none of this version, or of a body of another length.
    """
    magic, version, form, codec, state, symbols, zero, n, k, tau, said, crc = _HEADER.unpack_from(header.data)
    if magic != _MAGIC:
        raise CorruptMessage(f"it begins with {bytes(magic)!r}, a message with {_MAGIC!r}")
    if version != VERSION:
        raise CorruptMessage(f"version {version}; this program reads version {VERSION}")
    if said != length:
        raise CorruptMessage(f"the header says {said} bytes of body, there are {length}")
    return Header(form, codec, state, symbols, zero, n, k, tau, crc)


def interpret(header: Header, length: int, n: int) -> tuple[Codec, Head] | NonFinite:
    """What a header says of its body, or that there is none because a gradient was not finite.

    Args:
        header: one whose checksum is right, or is going to be looked at before anything is applied.
        length: of the body.
        n: elements that the update must have.

    Raises:
        CorruptMessage: a field is out of its range, or n is another.
    """
    if header.form not in FORM_OF_CODE:
        raise CorruptMessage(f"form {header.form} is unknown; known are {sorted(FORM_OF_CODE)}")
    form, k, tau = FORM_OF_CODE[header.form], header.k, header.tau
    if header.zero or header.symbols >= len(_SYMBOLS) or header.n > LARGEST_N:
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
    return codec, Head(form, n, k, np.float32(tau), _SYMBOLS[header.symbols])


def read(message: Bytes, n: int) -> Update | NonFinite:
    """The update that a message holds, checked in every part.

    Args:
        message: uint8, exactly the message. The update may share its memory.
        n: elements that the update must have. Nothing larger than them and the message is allocated.

    Raises:
        CorruptMessage: it is no message that `write` or `write_nonfinite` could have made, or of another n.
    """
    return read_all([message], [n])[0]


def read_all(messages: Sequence[Bytes], elements: Sequence[int]) -> list[Update | NonFinite]:
    """The updates of many messages; see `read`.

    Args:
        messages: each uint8, exactly the message.
        elements: n of each one's update.

    Raises:
        CorruptMessage: see `read`; about one of those that are not valid.
    """
    opened = [_open(message, n) for message, n in zip(messages, elements, strict=True)]
    found: list[Update | NonFinite] = []
    for (codec, _), group in groupby(zip(messages, opened, strict=True), key=_way):
        members = list(group)
        if codec is None:
            found += [what for _, what in members if isinstance(what, NonFinite)]
            continue
        heads = [what[1] for _, what in members if not isinstance(what, NonFinite)]
        found += codec.decode_all([message[HEADER_BYTES:] for message, _ in members], heads)
    for update in found:
        if update.form != "wgt" or isinstance(update, NonFinite):
            continue
        if not sparse.check_values(update.words, update.values, update.tau):
            raise CorruptMessage("a value is not finite, smaller than tau, or not of its word's sign")
    return found


def _way(opened: tuple[Bytes, tuple[Codec, Head] | NonFinite]) -> tuple[Codec | None, Form | None]:
    """What messages that are read together have in common."""
    what = opened[1]
    return (None, None) if isinstance(what, NonFinite) else (what[0], what[1].form)


def _open(message: Bytes, n: int) -> tuple[Codec, Head] | NonFinite:
    """What the header says, once the checksum was found right."""
    if message.size < HEADER_BYTES:
        raise CorruptMessage(f"{message.size} bytes are less than a header, which has {HEADER_BYTES}")
    length = message.size - HEADER_BYTES
    header = open_header(message, length)
    if header.crc != _checksum(message):
        raise CorruptMessage(WRONG_CHECKSUM)
    return interpret(header, length, n)


def _checksum(message: Bytes) -> int:
    """CRC-32 of the message with the checksum's own place taken as zero."""
    whole = message.data
    head = zlib.crc32(bytes(whole[:_CRC_AT]) + bytes(4))
    return zlib.crc32(whole[HEADER_BYTES:], head)
