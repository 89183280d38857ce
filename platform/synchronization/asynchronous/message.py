"""The message that a worker sends after each of its steps, and its bytes.

It has a head of 32 bytes, then 4 bytes per worker that say how many of its updates the sender had applied,
then the compressor's payload. docs/reference/messages.md has the layout.
"""

from dataclasses import dataclass
from struct import Struct

import numpy as np

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Payload

HEAD = Struct("<IIQdQ")
"""Kind, 0, number, factor, bytes of the payload; little-endian."""
_COUNT = np.dtype("<u4")
UPDATE, ENDED = 1, 2
"""Kinds: an update; the sender makes no more steps until all workers are drained."""


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
        return HEAD.size + _COUNT.itemsize * len(self.known) + int(self.payload.size)


def written(message: Message) -> Payload:
    """The bytes of a message."""
    head = HEAD.pack(UPDATE, 0, message.number, message.factor, message.payload.size)
    before = np.frombuffer(head + np.array(message.known, _COUNT).tobytes(), np.uint8)
    return np.concatenate([before, message.payload])


def ended(number: int) -> Payload:
    """The bytes of a message that says that its sender makes no step from this one on."""
    return np.frombuffer(HEAD.pack(ENDED, 0, number, 0.0, 0), np.uint8)


def read(sender: int, arrived: Payload, workers: int) -> Message | int:
    """An update; or the step before which its sender ends. Raises CorruptMessage: the bytes are neither."""
    kind, nothing, number, factor, size = HEAD.unpack(arrived[: HEAD.size].tobytes().ljust(HEAD.size, b"\0"))
    expected = HEAD.size + (_COUNT.itemsize * workers if kind == UPDATE else 0) + size
    if kind not in (UPDATE, ENDED) or nothing or arrived.size != expected or not np.isfinite(factor):
        raise CorruptMessage(
            f"what worker {sender} sent is no message: kind {kind}, factor {factor}, {arrived.size} bytes"
        )
    if kind == ENDED:
        return int(number)
    behind = HEAD.size + _COUNT.itemsize * workers
    counts = arrived[HEAD.size : behind].view(_COUNT).tolist()
    return Message(sender, number, factor, tuple(counts), arrived[behind:])
