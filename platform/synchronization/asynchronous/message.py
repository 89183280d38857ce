"""The message that a worker sends after each of its steps, and its bytes.

It has a head of 32 bytes, then 4 bytes per worker that say how many of its updates the sender had applied,
then the compressor's payload. docs/reference/messages.md has the layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct

import numpy as np

from taugrad.compressors.errors import CorruptMessage

from ..rounds import Payload

HEAD = Struct("<IIQdQ")
"""Kind, 0, number, factor, bytes of the payload; little-endian."""
_COUNT = np.dtype("<u4")
UPDATE, ENDED, ALIVE = 1, 2, 3
"""Kinds: an update; the sender makes no more steps until all workers are drained; a sign of life."""


@dataclass(frozen=True)
class Message:
    """A worker's update."""

    sender: int
    number: int
    """The number of the sender's steps before it."""
    factor: float
    """What the update is multiplied by when it is applied: minus the learning rate of the sender's step, over
    the number of workers if updates are averaged."""
    known: tuple[int, ...]
    """By worker, how many of its updates are in the weights at which the gradient was computed."""
    payload: Payload

    @property
    def nbytes(self) -> int:
        """Number of bytes on the wire."""
        return nbytes_before_payload(len(self.known)) + int(self.payload.size)


def nbytes_before_payload(workers: int) -> int:
    """Number of bytes of a message's head and counts."""
    return HEAD.size + _COUNT.itemsize * workers


def written(message: Message) -> list[bytes]:
    """The bytes of a message, in pieces to be sent one after the other."""
    head = HEAD.pack(UPDATE, 0, message.number, message.factor, message.payload.size)
    return [head + np.array(message.known, _COUNT).tobytes(), message.payload.tobytes()]


def signal(kind: int, number: int = 0) -> bytes:
    """The bytes of a message without counts and payload."""
    return HEAD.pack(kind, 0, number, 0.0, 0)


@dataclass(frozen=True)
class Head:
    """The head of a message."""

    kind: int
    number: int
    factor: float
    payload_bytes: int

    def rest(self, workers: int) -> int:
        """Number of bytes that follow the head."""
        return _COUNT.itemsize * workers + self.payload_bytes if self.kind == UPDATE else 0


def read_head(data: bytes, most_bytes: int) -> Head:
    """Reads a head.

    Args:
        data: `HEAD.size` bytes.
        most_bytes: the largest size of a payload.

    Raises:
        CorruptMessage: this is not a head.
    """
    kind, nothing, number, factor, size = HEAD.unpack(data)
    if kind not in (UPDATE, ENDED, ALIVE) or nothing or size > most_bytes or not np.isfinite(factor):
        raise CorruptMessage(f"no head of a message: kind {kind}, {size} bytes, factor {factor}")
    return Head(kind, number, factor, size)


def read_update(sender: int, head: Head, rest: Payload, workers: int) -> Message:
    """Reads a message from the bytes after its head, uint8 [`head.rest`]."""
    counts: Sequence[int] = rest[: _COUNT.itemsize * workers].view(_COUNT).tolist()
    return Message(sender, head.number, head.factor, tuple(counts), rest[_COUNT.itemsize * workers :])
