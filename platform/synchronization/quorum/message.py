"""The messages of workers whose rounds close with a quorum, and their bytes (docs/reference/messages.md).

A message has a head of 24 bytes (kind, checksum of the body, round, length of the body; little-endian), and a
body:

- OFFER: the compressor's payload for the round, then the sender's buffers as raw values.
- DECISION: the members of the round as bits, worker 0 first.
- ASK: no body. It asks for the agreed weights before the round, or before a later one.
- STATE: the members of the last round as above, then the agreed weights before the round.
- READY: no body. The sender has finished all rounds before an evaluation, whose number replaces the round's.
"""

import zlib
from collections.abc import Collection
from enum import IntEnum
from struct import Struct

import numpy as np

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Payload

HEAD = Struct("<IIQQ")


class MessageKind(IntEnum):
    """What a message is; the numbers are on the wire."""

    OFFER = 1
    DECISION = 2
    ASK = 3
    STATE = 4
    READY = 5


def written(kind: MessageKind, number: int, body: bytes = b"") -> Payload:
    """A message's bytes."""
    return np.frombuffer(HEAD.pack(kind, zlib.crc32(body), number, len(body)) + body, np.uint8)


def read(sender: int, arrived: Payload) -> tuple[MessageKind, int, Payload]:
    """A message's kind, its round and its body, whose checksum is right; raises CorruptMessage."""
    kind, crc, number, size = HEAD.unpack(arrived[: HEAD.size].tobytes().ljust(HEAD.size, b"\0"))
    body = arrived[HEAD.size :]
    if kind not in tuple(MessageKind) or size != body.size:
        raise CorruptMessage(f"what worker {sender} sent is no message: kind {kind}, {arrived.size} bytes")
    if zlib.crc32(body.data) != crc:
        raise CorruptMessage(f"what worker {sender} sent: a message of {size} bytes has the wrong checksum")
    return MessageKind(kind), number, body


def mask_bytes(workers: int) -> int:
    """Number of bytes of the members' bits."""
    return -(-workers // 8)


def members_to_bytes(members: Collection[int], workers: int) -> bytes:
    """The members' bits."""
    return sum(1 << member for member in members).to_bytes(mask_bytes(workers), "little")


def members_from_bytes(bits: Payload, workers: int) -> frozenset[int]:
    """Reads members' bits; raises CorruptMessage."""
    indices = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    if bits.size != mask_bytes(workers) or not indices.size or (indices >= workers).any():
        raise CorruptMessage(f"a round's members in {bits.size} bytes are not some of {workers} workers")
    return frozenset(indices.tolist())
