"""The messages of workers whose rounds close with a quorum, and their bytes (docs/reference/messages.md).

A message has a head of 24 bytes (kind, checksum of the body, round, length of the body; little-endian), and a
body:

- OFFER: the compressor's payload for the round, then the sender's buffers as raw values.
- VOTE: phase, leader, ballot, accepted ballot, then the members as bits, worker 0 first.
- ASK: no body. It asks for the agreed weights before the round, or before a later one.
- STATE: leader, members as above, then the agreed weights before the round.
- READY: no body. The sender has finished all rounds before an evaluation, whose number replaces the round's.
"""

import zlib
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

import numpy as np

from taugrad.compressors.errors import CorruptMessage
from taugrad.compressors.exchange.carrier import Payload

from .consensus import Phase, Value, Vote

HEAD = Struct("<IIQQ")
_VOTE = Struct("<Iiqq")
_LEADER = Struct("<i")
_NOBODY = -1
"""The leader of a vote that has no value."""


class Kind(IntEnum):
    """What a message is; the numbers are on the wire."""

    OFFER = 1
    VOTE = 2
    ASK = 3
    STATE = 4
    READY = 5


@dataclass(frozen=True)
class Received:
    """A message from another worker; its checksum was right."""

    sender: int
    kind: Kind
    number: int
    """Of the round."""
    body: Payload


def written(kind: Kind, number: int, body: bytes = b"") -> Payload:
    """A message's bytes."""
    return np.frombuffer(HEAD.pack(kind, zlib.crc32(body), number, len(body)) + body, np.uint8)


def read(sender: int, arrived: Payload) -> Received:
    """Reads a message; raises CorruptMessage."""
    kind, crc, number, size = HEAD.unpack(arrived[: HEAD.size].tobytes().ljust(HEAD.size, b"\0"))
    body = arrived[HEAD.size :]
    if kind not in tuple(Kind) or size != body.size:
        raise CorruptMessage(f"what worker {sender} sent is no message: kind {kind}, {arrived.size} bytes")
    if zlib.crc32(body.data) != crc:
        raise CorruptMessage(f"what worker {sender} sent: a message of {size} bytes has the wrong checksum")
    return Received(sender, Kind(kind), number, body)


def vote_to_bytes(vote: Vote, workers: int) -> bytes:
    """A vote's body."""
    leader = _NOBODY if vote.value is None else vote.value.leader
    members = frozenset[int]() if vote.value is None else vote.value.members
    return _VOTE.pack(vote.phase, leader, vote.ballot, vote.accepted) + _bits(members, workers)


def vote_from_bytes(body: Payload, workers: int) -> Vote:
    """Reads a vote's body; raises CorruptMessage."""
    if body.size != _VOTE.size + mask_bytes(workers):
        raise CorruptMessage(f"a vote of {body.size} bytes")
    phase, leader, ballot, accepted = _VOTE.unpack(body[: _VOTE.size].tobytes())
    if phase not in tuple(Phase) or ballot < 0:
        raise CorruptMessage(f"a vote of phase {phase} in ballot {ballot}")
    value = None if leader == _NOBODY else _value(leader, body[_VOTE.size :], workers)
    if value is None and (phase in (Phase.ACCEPT, Phase.DECIDED) or accepted >= 0):
        raise CorruptMessage(f"a vote of phase {phase} without a value")
    return Vote(Phase(phase), ballot, accepted, value)


def state_prefix(value: Value, workers: int) -> bytes:
    """The bytes before agreed weights: the decision that they come from."""
    return _LEADER.pack(value.leader) + _bits(value.members, workers)


def prefix_bytes(workers: int) -> int:
    """Number of bytes of the same."""
    return _LEADER.size + mask_bytes(workers)


def value_before_state(body: Payload, workers: int) -> Value:
    """Reads what `state_prefix` wrote; raises CorruptMessage."""
    if body.size < prefix_bytes(workers):
        raise CorruptMessage(f"agreed weights of {body.size} bytes")
    (leader,) = _LEADER.unpack(body[: _LEADER.size].tobytes())
    return _value(leader, body[_LEADER.size : prefix_bytes(workers)], workers)


def mask_bytes(workers: int) -> int:
    """Number of bytes of the members' bits."""
    return -(-workers // 8)


def _bits(members: frozenset[int], workers: int) -> bytes:
    return sum(1 << member for member in members).to_bytes(mask_bytes(workers), "little")


def _value(leader: int, bits: Payload, workers: int) -> Value:
    found = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
    if not 0 <= leader < workers or (found >= workers).any():
        raise CorruptMessage(f"a decision of worker {leader} of {workers}")
    return Value(frozenset(found.tolist()), leader)
