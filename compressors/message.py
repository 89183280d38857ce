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
from dataclasses import dataclass

import numpy as np

from .codecs import CODECS, codec_by_code, codec_by_name, plan_values
from .codecs.base import Bytes, Codec, Head
from .codecs.registry import smallest_with_size
from .codecs.values import Symbols
from .config.base import LARGEST_TAU, SMALLEST_TAU
from .errors import CorruptMessage
from .forms import FORM_OF_CODE, FORMS, Form
from .kernels import sparse
from .update import Update

VERSION = 1
LARGEST_N = 2**31 - 1
_HEADER = struct.Struct("<2sBBBBBBIIfQI")
HEADER_BYTES = _HEADER.size
_LENGTH = struct.Struct("<Q")
_STATE_AT, _LENGTH_AT = 5, 20
_CRC_AT = HEADER_BYTES - 4
_MAGIC = b"tg"
_UPDATE, _NONFINITE = 0, 1
WRONG_CHECKSUM = "the checksum does not match"
_SYMBOLS: tuple[Symbols, ...] = ("raw", "huffman")


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
    if update.n > LARGEST_N:
        raise ValueError(f"n = {update.n}: a message holds at most {LARGEST_N} elements")
    if codec != "auto" and not codec_by_name(codec).fits(update):
        raise ValueError(f"{codec} cannot write an update of {update.k} of {update.n} {update.form}")
    values = plan_values(update, "raw" if codec == "raw" else symbols, threads)
    chosen, size = smallest_with_size(update, values, CODECS if codec == "auto" else [codec_by_name(codec)])
    message = np.zeros(HEADER_BYTES + size, np.uint8)
    chosen.encode(update, values, message[HEADER_BYTES:])
    coded = "raw" if chosen.name == "raw" else values.symbols
    _seal(message, update.form, chosen.code, _UPDATE, coded, update.n, update.k, update.tau)
    return message


def write_nonfinite(refusal: NonFinite) -> Bytes:
    """A message that says why there is no update; uint8 [HEADER_BYTES]."""
    message = np.zeros(HEADER_BYTES, np.uint8)
    _seal(message, refusal.form, 0, _NONFINITE, "raw", refusal.n, refusal.ordinal, refusal.tau)
    return message


def is_refusal(message: Bytes) -> bool:
    """Whether these bytes want to be what `write_nonfinite` writes; nothing else of them is looked at."""
    return message.size >= HEADER_BYTES and int(message[_STATE_AT]) == _NONFINITE


def _seal(
    message: Bytes, form: Form, codec: int, state: int, symbols: Symbols, n: int, k: int, tau: np.float32
) -> None:
    length = message.size - HEADER_BYTES
    message[:HEADER_BYTES] = _header(form, codec, state, symbols, n, k, tau, length)
    struct.pack_into("<I", message.data, _CRC_AT, _checksum(message))


def unsealed_header(update: Update, codec: Codec, symbols: Symbols, length: int) -> Bytes:
    """The header of an update's message, its checksum still 0.

    Args:
        update: what the body holds.
        codec: that wrote it.
        symbols: how its symbols stand there.
        length: of the body.
    """
    return _header(update.form, codec.code, _UPDATE, symbols, update.n, update.k, update.tau, length)


def _header(
    form: Form, codec: int, state: int, symbols: Symbols, n: int, k: int, tau: np.float32, length: int
) -> Bytes:
    codes = (FORMS[form].code, codec, state, _SYMBOLS.index(symbols), 0)
    packed = _HEADER.pack(_MAGIC, VERSION, *codes, n, k, tau, length, 0)
    return np.frombuffer(packed, np.uint8)


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


@dataclass(frozen=True)
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
    if message.size < HEADER_BYTES:
        raise CorruptMessage(f"{message.size} bytes are less than a header, which has {HEADER_BYTES}")
    length = message.size - HEADER_BYTES
    header = open_header(message, length)
    if header.crc != _checksum(message):
        raise CorruptMessage(WRONG_CHECKSUM)
    opened = interpret(header, length, n)
    if isinstance(opened, NonFinite):
        return opened
    codec, head = opened
    update = codec.decode(message[HEADER_BYTES:], head)
    if head.form == "wgt" and not sparse.check_values(update.words, update.values, head.tau):
        raise CorruptMessage("a value is not finite, smaller than tau, or not of its word's sign")
    return update


def _checksum(message: Bytes) -> int:
    """CRC-32 of the message with the checksum's own place taken as zero."""
    head = zlib.crc32(bytes(4), zlib.crc32(message[:_CRC_AT].data))
    return zlib.crc32(message[HEADER_BYTES:].data, head)
