"""The codec interface.

Contract: a codec's `code` stands in every message it wrote. Two codecs may share one only if each
reads the other's bytes, and the bytes of a code never change their meaning.

A body is the positions, then the values. A codec decides how the positions stand; `values.py` writes and
reads the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import CorruptMessage
from ..forms import FORMS, Form
from ..update import Update
from .values import Bytes, PlannedValues, SizedValues, Symbols, aligned, read_values

__all__ = ["Bodies", "Bytes", "Codec", "Head", "PositionCodec", "aligned"]


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Head:
    """What a message's header says of its body."""

    form: Form
    n: int
    k: int
    tau: np.float32
    symbols: Symbols
    """How symbols stand in the values, where the form has any."""


@dataclass(frozen=True, eq=False)
class Bodies:
    """Bodies that are ready to be written by a codec.

    Attributes:
        codec: that writes them.
        updates: what they hold.
        values: of each update.
        sizes: bytes of each body, exactly.
    """

    codec: "Codec"
    updates: Sequence[Update]
    values: Sequence[PlannedValues]
    sizes: Sequence[int]

    def write(self, which: Sequence[int], payload: Bytes, begins: Sequence[int]) -> None:
        """Writes some of the bodies.

        Args:
            which: their numbers.
            payload: uint8; zeros where a body is to stand. A few bytes behind a body may be overwritten.
            begins: where each body begins, ascending.
        """
        for number, begin in zip(which, begins, strict=True):
            body = payload[begin : begin + self.sizes[number]]
            self.codec.encode(self.updates[number], self.values[number], body)


class Codec(ABC):
    """Writes the body of a message and reads it back; the header keeps form, n, k and tau."""

    name: ClassVar[str]
    code: ClassVar[int]

    @abstractmethod
    def fits(self, update: Update) -> bool:
        """Whether the codec can write such an update."""

    @abstractmethod
    def size(self, update: Update, values: SizedValues) -> int:
        """Bytes of the body, exactly, without writing it."""

    @abstractmethod
    def encode(self, update: Update, values: PlannedValues, body: Bytes) -> None:
        """Writes the update into `body`, uint8 of exactly `size` bytes, zeroed."""

    def plan(self, updates: Sequence[Update], values: Sequence[PlannedValues]) -> Bodies:
        """Prepares to write some updates that fit, and their values."""
        sizes = [self.size(update, each) for update, each in zip(updates, values, strict=True)]
        return Bodies(self, updates, values, sizes)

    @abstractmethod
    def decode(self, body: Bytes, head: Head) -> Update:
        """Reads a body.

        Raises:
            CorruptMessage: it is nothing that `encode` could have written for such a header.
        """

    def decode_all(self, bodies: Sequence[Bytes], heads: Sequence[Head]) -> list[Update]:
        """Reads some bodies of one form, at least one; see `decode`."""
        return [self.decode(body, head) for body, head in zip(bodies, heads, strict=True)]


class PositionCodec(Codec):
    """A codec whose body is a section of positions, then the values as they are."""

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is not None

    def size(self, update: Update, values: SizedValues) -> int:
        """See `Codec.size`."""
        return self.positions_size(update) + values.size

    def encode(self, update: Update, values: PlannedValues, body: Bytes) -> None:
        """See `Codec.encode`."""
        split = body.size - values.size
        self.write_positions(update, body[:split])
        values.write(body[split:])

    def decode(self, body: Bytes, head: Head) -> Update:
        """See `Codec.decode`."""
        words, used = self.read_positions(body, head)
        return self.with_values(words, body[used:], head)

    def with_values(self, words: NDArray[np.uint32], body: Bytes, head: Head) -> Update:
        """The update whose words were read; raises CorruptMessage.

        Args:
            words: uint32 [k].
            body: what stands behind them.
            head: what the header says.
        """
        values = read_values(body, head.form, head.k, head.symbols)
        words = _with_signs(words, values, head, signs_there=self.keeps_signs)
        return Update(head.form, head.n, head.tau, words, values)

    keeps_signs: ClassVar[bool] = False
    """Whether words come back with their sign in any form; otherwise only where the form has it apart."""

    @abstractmethod
    def positions_size(self, update: Update) -> int:
        """Bytes of the section."""

    @abstractmethod
    def write_positions(self, update: Update, section: Bytes) -> None:
        """Writes the section, exactly `positions_size` bytes, zeroed."""

    @abstractmethod
    def read_positions(self, body: Bytes, head: Head) -> tuple[NDArray[np.uint32], int]:
        """uint32 [k] words, ascending and below n, and how many bytes they took.

        Raises:
            CorruptMessage: the section is not valid, or longer than the body.
        """


def _with_signs(
    words: NDArray[np.uint32], values: Any, head: Head, *, signs_there: bool
) -> NDArray[np.uint32]:
    """Words whose sign is what the form asks for: wgt's are those of the values, other floats' are 0."""
    if FORMS[head.form].sign_apart:
        return words
    expected = np.signbit(values).astype(np.uint32) if head.form == "wgt" else np.uint32(0)
    if signs_there:
        if ((words & 1) != expected).any():
            raise CorruptMessage("a word's sign is not that of its value")
        return words
    return words | expected


def need(body: Bytes, size: int, what: str) -> None:
    """Refuses a body that is shorter than a part of it must be."""
    if body.size < size:
        raise CorruptMessage(f"{body.size} bytes cannot hold {what}, which takes {size}")
