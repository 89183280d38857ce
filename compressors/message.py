"""A message: one update as bytes, with a header that describes it and a checksum over both.

Header, 32 bytes, little endian:

| offset | type | field |
| --- | --- | --- |
| 0 | 2 bytes | magic, `tg` |
| 2 | u8 | version, 1 |
| 3 | u8 | rule: 1 wgt, 2 bgt, 3 qgt |
| 4 | u8 | codec: 0 raw, 1 packed32, 2 bitmap |
| 5 | u8 | state: 0 an update; 1 a gradient that was not finite, without a body |
| 6 | u16 | 0 |
| 8 | u32 | n, elements of the gradient |
| 12 | u32 | k, elements sent; in state 1 the ordinal of the parameter that was not finite |
| 16 | f32 | tau |
| 20 | u64 | length of the body |
| 28 | u32 | CRC-32 of header (with 0 here) and body |
"""

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from .codecs import codec_by_code, codec_by_name, smallest
from .codecs.base import Bytes
from .config import LARGEST_TAU, SMALLEST_TAU
from .errors import CorruptMessage
from .kernels.threshold import ThresholdRule
from .update import SparseUpdate

VERSION = 1
LARGEST_N = 2**31 - 1
_HEADER = struct.Struct("<2sBBBBHIIfQI")
HEADER_BYTES = _HEADER.size
_CRC_AT = HEADER_BYTES - 4
_MAGIC = b"tg"
_RULE_CODE: dict[ThresholdRule, int] = {"wgt": 1, "bgt": 2, "qgt": 3}
_RULE_OF_CODE = {code: rule for rule, code in _RULE_CODE.items()}
_UPDATE, _NONFINITE = 0, 1


@dataclass(frozen=True)
class NonFinite:
    """Stands for an update that could not be made: the gradient held NaN or Inf."""

    rule: ThresholdRule
    n: int
    tau: np.float32
    ordinal: int
    """Which of the bucket's parameters, from 0."""


def write(update: SparseUpdate, codec: str = "auto") -> Bytes:
    """The update as a message.

    Args:
        update: at most LARGEST_N elements.
        codec: a codec's name, or `auto` for the smallest.

    Returns:
        uint8, HEADER_BYTES and the body.

    Raises:
        ValueError: the update has more elements than a message can hold.
    """
    if update.n > LARGEST_N:
        raise ValueError(f"n = {update.n}: a message holds at most {LARGEST_N} elements")
    chosen = smallest(update.rule, update.n, update.k) if codec == "auto" else codec_by_name(codec)
    length = chosen.size(update.rule, update.n, update.k)
    message = np.zeros(HEADER_BYTES + length, np.uint8)
    chosen.encode(update, message[HEADER_BYTES:])
    _seal(message, update.rule, chosen.code, _UPDATE, update.n, update.k, update.tau)
    return message


def write_nonfinite(refusal: NonFinite) -> Bytes:
    """A message that says why there is no update; uint8 [HEADER_BYTES]."""
    message = np.zeros(HEADER_BYTES, np.uint8)
    _seal(message, refusal.rule, 0, _NONFINITE, refusal.n, refusal.ordinal, refusal.tau)
    return message


def _seal(
    message: Bytes, rule: ThresholdRule, codec: int, state: int, n: int, k: int, tau: np.float32
) -> None:
    fields = (_MAGIC, VERSION, _RULE_CODE[rule], codec, state, 0, n, k, tau, message.size - HEADER_BYTES, 0)
    _HEADER.pack_into(message.data, 0, *fields)
    struct.pack_into("<I", message.data, _CRC_AT, _checksum(message))


def read(message: Bytes) -> SparseUpdate | NonFinite:
    """The update that a message holds, checked in every part.

    Args:
        message: uint8, exactly the message. The update may share its memory.

    Raises:
        CorruptMessage: it is anything but a message that `write` or `write_nonfinite` could have made.
    """
    if message.size < HEADER_BYTES:
        raise CorruptMessage(f"{message.size} bytes are less than a header, which has {HEADER_BYTES}")
    magic, version, rule_code, codec_code, state, zero, n, k, tau, length, crc = _HEADER.unpack_from(
        message.data
    )
    if magic != _MAGIC:
        raise CorruptMessage(f"it begins with {bytes(magic)!r}, a message with {_MAGIC!r}")
    if version != VERSION:
        raise CorruptMessage(f"version {version}; this program reads version {VERSION}")
    if length != message.size - HEADER_BYTES:
        there = message.size - HEADER_BYTES
        raise CorruptMessage(f"the header says {length} bytes of body, there are {there}")
    if crc != _checksum(message):
        raise CorruptMessage("the checksum does not match")
    if rule_code not in _RULE_OF_CODE:
        raise CorruptMessage(f"rule {rule_code} is unknown; known are {sorted(_RULE_OF_CODE)}")
    if zero or n > LARGEST_N or not (SMALLEST_TAU <= tau <= LARGEST_TAU):
        raise CorruptMessage(f"reserved bits are set, or n = {n} or tau = {tau} is out of range")
    rule = _RULE_OF_CODE[rule_code]
    tau = np.float32(tau)
    if state == _NONFINITE:
        if length or codec_code:
            raise CorruptMessage("a message without an update has a body or a codec")
        return NonFinite(rule, n, tau, k)
    if state != _UPDATE:
        raise CorruptMessage(f"state {state} is unknown")
    codec = codec_by_code(codec_code)
    if k > n or length != codec.size(rule, n, k):
        raise CorruptMessage(f"{length} bytes of {codec.name} cannot hold {k} of {n} elements")
    return codec.decode(message[HEADER_BYTES:], rule, n, k, tau)


def _checksum(message: Bytes) -> int:
    """CRC-32 of the message with the checksum's own place taken as zero."""
    head = zlib.crc32(bytes(4), zlib.crc32(message[:_CRC_AT].data))
    return zlib.crc32(message[HEADER_BYTES:].data, head)
