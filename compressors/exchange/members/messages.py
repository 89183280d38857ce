"""The messages of members and their coordinator, and their bytes.

| message | from, to | contents |
| --- | --- | --- |
| hello | process -> coordinator | asks to be a member |
| report | member -> coordinator | all that the member knows; a sign of life |
| rejection, view | coordinator -> member | why it is no member; or all that it needs to know |
| want, chunk | member <-> member | asks for an item, or for a chunk of it; has it |

Members and the coordinator say what they *know*, again and again, not what has changed: a message that is
lost, late or doubled does no harm. An item that members exchange has a key of two numbers: an incarnation and
the number of its offer; an incarnation and 0 for the residual of a member that leaves; 0 and a round for the
agreed state after it. To a person who asks for the status (`want`), the coordinator sends a view.

A message is a head of 16 bytes (`TGM1`, the length of its fields, their checksum, that of its payload;
little-endian), its fields as JSON, and a payload. Nothing is unpickled; fields are validated and limited.
"""

import zlib
from struct import Struct
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ...errors import CorruptMessage
from ..carrier import Payload

_MAGIC = b"TGM1"
_HEAD = Struct("<4sIII")
_MOST_FIELD_BYTES = 1 << 26
"""Enough for the view of many members, each of which says what it holds."""
MOST_SLOTS = 256
MOST_TEXT = 512

_Number = Annotated[int, Field(ge=0, lt=1 << 53)]
_Text = Annotated[str, Field(max_length=MOST_TEXT)]
Key = tuple[_Number, _Number]
"""Of an item that members exchange."""
_Numbers = Annotated[tuple[_Number, ...], Field(max_length=1 << 14)]
_Keys = Annotated[tuple[Key, ...], Field(max_length=1 << 14)]


class _Fields(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)


class StateId(_Fields):
    """An agreed state: the last round in it, and the ballot by which that was decided."""

    round: _Number
    ballot: _Number
    digest: _Text = ""
    """Of its bits; empty where it was not computed."""


class Recall(_Fields):
    """Decisions with a lower ballot, about this round or a later one, are void."""

    round: _Number
    ballot: _Number

    def voids(self, state: StateId) -> bool:
        """Whether a state has such a decision."""
        return state.round >= self.round and state.ballot < self.ballot


class Rules(_Fields):
    """How rounds are decided; the same for all members of a run. They are fields of `Members`."""

    max_members: Annotated[int, Field(ge=1, le=MOST_SLOTS)] = 8
    min_members: Annotated[int, Field(ge=1, le=MOST_SLOTS)] = 1
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    """The least part of the members whose offers make a round."""
    silent_after: Annotated[float, Field(gt=0)] = 10.0
    """A member that has said nothing for so many seconds has left."""
    round_within: Annotated[float, Field(gt=0)] = 60.0
    """Seconds for which those that have handed in wait, at most."""


class Hello(_Fields):
    """A process asks the coordinator to be a member; the same `process` is let in once."""

    kind: Literal["hello"] = "hello"
    process: _Text
    run: _Text = ""
    """The run that it belongs to; empty for a new one."""
    rules: Rules
    settings: Annotated[dict[_Text, _Text], Field(max_length=64)] = {}
    """What all members must have in common, as fields and values."""
    endpoint: _Text = ""
    epoch: _Number = 0
    """The highest that it has seen."""
    previous: _Number = 0
    """Its incarnation so far, or that of its checkpoint."""
    state: StateId | None = None
    offered: _Number = 0
    """The number of the last offer of which its residual knows."""
    origin: _Text = ""
    """The worker of a fixed group whose state it has, if any."""
    shards: _Numbers = ()
    """That it has leased, and that are in its residual and in no round."""


class Report(_Fields):
    """What a member knows; also its sign of life."""

    kind: Literal["report"] = "report"
    run: _Text
    incarnation: _Number
    number: _Number
    """It grows from one report to the next."""
    epoch: _Number
    version: _Number
    """Of the newest view that it follows."""
    applied: StateId | None = None
    held: _Keys = ()
    """Offers, and residuals of members that leave, that it has whole."""
    offered: _Number = 0
    """The number of its last offer."""
    leases: _Number = 0
    """How many shards it has asked for, as this incarnation."""
    leaving: bool = False
    finished: bool = False
    """Whether nothing more will come from it."""
    sent_bytes: _Number = 0
    """To other members, so far."""
    asks: bool = False
    """Whether it wants a view in return."""


class Rejection(_Fields):
    """The coordinator's answer to a process that is no member, or no longer."""

    kind: Literal["rejection"] = "rejection"
    incarnation: _Number = 0
    """That of a member that has left; 0: of a hello."""
    final: bool
    """Whether there is no use in another hello."""
    reason: _Text


class Peer(_Fields):
    """A member, as the coordinator knows it."""

    slot: _Number
    incarnation: _Number
    endpoint: _Text
    joining: bool
    leaving: bool = False
    applied: int = Field(ge=-1)
    """The last round in its state; -1: it has none yet."""
    taken: _Number
    """The number of the last offer of its process that a round has."""
    held: _Keys
    silent_s: float = 0.0
    left_out: _Number = 0
    """Rounds without it, since the coordinator started."""
    sent_bytes: _Number = 0


class Decision(_Fields):
    """The offers in a round: final once a live member has applied it."""

    round: _Number
    ballot: _Number
    offers: Annotated[dict[_Number, Key], Field(min_length=1, max_length=MOST_SLOTS)]
    """By slot, ascending."""


class View(_Fields):
    """What the coordinator tells a member; of two views, the one with the higher epoch and version counts."""

    kind: Literal["view"] = "view"
    run: _Text
    epoch: _Number
    nonce: _Text
    """Another one at each start of a coordinator: two with one epoch can be told apart."""
    version: _Number
    incarnation: _Number
    """The receiver's; 0 for a person who asked for the status."""
    peers: Annotated[tuple[Peer, ...], Field(max_length=MOST_SLOTS)]
    """All members, the receiver included."""
    last: _Number
    """The last round that is decided."""
    ballot: _Number
    decisions: Annotated[tuple[Decision, ...], Field(max_length=256)]
    """The latest rounds: all that some member has not applied."""
    recalls: Annotated[tuple[Recall, ...], Field(max_length=256)]
    residual_counts: bool = False
    """Whether nothing of the residual with which the receiver said hello has been sent since."""
    begins: bool = False
    """Whether the receiver's weights are everybody's first."""
    leases: _Number = 0
    """How many shards the receiver was given, as this incarnation."""
    shard: _Number = 0
    """The last of them."""
    adopted: dict[_Number, _Number] = {}
    """By member that leaves, the one that takes over its residual; where one of them is the receiver."""
    waiting: _Text = ""
    """For whom or what the open round waits; empty if for nothing unusual."""
    left: Annotated[tuple[_Text, ...], Field(max_length=8)] = ()
    """The members that left last, and why."""

    @property
    def floor(self) -> int:
        """The first round of which members still have the offers."""
        return self.decisions[0].round if self.decisions else self.last + 1

    def is_void(self, state: StateId) -> bool:
        """Whether a state has a decision that was recalled."""
        return any(recall.voids(state) for recall in self.recalls)


class Want(_Fields):
    """Asks for a chunk of an item; of an agreed state, or a later one. To the coordinator: for the status."""

    kind: Literal["want"] = "want"
    sender: _Number = 0
    key: Key = (0, 0)
    index: _Number = 0


class Chunk(_Fields):
    """A chunk of an item; an offer and a residual are one chunk."""

    kind: Literal["chunk"] = "chunk"
    sender: _Number
    key: Key
    ballot: _Number = 0
    """Of an agreed state."""
    digest: _Text = ""
    """A hash of all chunks of an agreed state: with moments in them, members have others of one round."""
    index: _Number = 0
    count: Annotated[int, Field(ge=1, le=1 << 20)] = 1
    payload: Annotated[Any, Field(exclude=True)] = None


Message = Hello | Report | Rejection | View | Want | Chunk

_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])
_NOTHING = np.empty(0, np.uint8)


def to_bytes(message: Message) -> Payload:
    """A message's bytes, uint8 [n]."""
    fields = message.model_dump_json().encode()
    payload = message.payload if isinstance(message, Chunk) else _NOTHING
    head = _HEAD.pack(_MAGIC, len(fields), zlib.crc32(fields), zlib.crc32(payload.data))
    return np.concatenate([np.frombuffer(head + fields, np.uint8), payload])


def from_bytes(data: Payload, sender: str) -> Message:
    """Reads a message; raises CorruptMessage, which names the sender."""
    size, problem = data.size, f"{sender} sent {data.size} bytes that are no message"
    if size < _HEAD.size:
        raise CorruptMessage(problem)
    magic, length, fields_crc, payload_crc = _HEAD.unpack(data[: _HEAD.size].tobytes())
    if magic != _MAGIC or length > min(_MOST_FIELD_BYTES, size - _HEAD.size):
        raise CorruptMessage(problem)
    fields, payload = data[_HEAD.size : _HEAD.size + length].tobytes(), data[_HEAD.size + length :]
    if zlib.crc32(fields) != fields_crc or zlib.crc32(payload.data) != payload_crc:
        raise CorruptMessage(f"{sender} sent a message of {size} bytes with a wrong checksum")
    try:
        message = _ADAPTER.validate_json(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptMessage(f"{sender} sent a message whose {where} is wrong: {first['msg']}") from None
    if isinstance(message, Chunk):
        return message.model_copy(update={"payload": payload})
    if payload.size:
        raise CorruptMessage(f"{sender} sent a {message.kind} with {payload.size} bytes too many")
    return message
