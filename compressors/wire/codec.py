"""Sections of messages, and the interface of codecs, which write the positions of an update.

Contract: a codec's `code` is in every message that it wrote. Two codecs may share a code only if each reads
the other's bytes, and the bytes of a code never change their meaning.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import CorruptMessage
from ..ops.array import Array, Bytes, Words, host
from ..ops.cpu.bits import Section
from ..ops.interface import Form
from .forms import FORMS
from .update import Segments, Update


def joined(sections: Sequence[Section]) -> Section:
    """Sections one behind the other."""

    def write(out: Bytes) -> None:
        at = 0
        for size, write_one in sections:
            write_one(out[at : at + size])
            at += size

    return Section(sum(size for size, _ in sections), write)


def copied(array: Array | bytes) -> Section:
    """An array's bytes."""
    data = np.frombuffer(array, np.uint8) if isinstance(array, bytes) else host(array).view(np.uint8)

    def write(out: Bytes) -> None:
        out[:] = data

    return Section(data.size, write)


@dataclass(frozen=True)
class Head:
    """What a message says of its positions before they are read."""

    form: Form
    segments: Segments
    k: int

    @property
    def n(self) -> int:
        """Elements of all parameters; positions are below."""
        return self.segments.n

    @property
    def signed(self) -> bool:
        """Whether signs stand with positions."""
        return FORMS[self.form].has_tau


class Codec(ABC):
    """Writes positions, and signs where values have none, and reads them back."""

    name: ClassVar[str]
    code: ClassVar[int]
    """The code in messages."""
    with_values: ClassVar[bool] = False
    """Whether its section holds the values, too; otherwise they follow."""

    @abstractmethod
    def measure(self, update: Update, threads: int) -> Section | None:
        """The positions of an update that has some, ready to be written; None if it cannot write them.

        Words have signs only where `FORMS[update.form].has_tau`: elsewhere, their lowest bit means nothing.
        """

    @abstractmethod
    def read(self, body: Bytes, head: Head, threads: int) -> tuple[Words, int]:
        """Reads the section that an untrusted body, uint8, begins with.

        Returns:
            uint32 [k], position << 1 | sign, ascending, all positions below n; the sign is 0 where values
            have it. And bytes of the section.

        Raises:
            CorruptMessage: there is no section that `measure` makes.
        """

    def values(self, section: Bytes, head: Head, words: Words) -> Array:
        """The values that a section of a codec `with_values` holds, as `Update.values` has them."""
        raise TypeError(f"codec {self.name} writes no values")


def need(body: Bytes, size: int, what: str) -> None:
    """Refuses a body that is shorter than a part of it must be."""
    if body.size < size:
        raise CorruptMessage(f"{what} take {size} bytes, {body.size} are left")


def write_bits(flags: NDArray[Any]) -> Bytes:
    """A bit for each flag, the first in the lowest bit of the first byte; spare bits are 0."""
    return np.packbits(flags, bitorder="little")


def read_bits(body: Bytes, count: int, what: str) -> NDArray[np.bool_]:
    """The bits that a body begins with; CorruptMessage if it is too short, or spare bits are set."""
    size = bit_bytes(count)
    need(body, size, f"positions: bits of {what}")
    bits = np.unpackbits(body[:size], bitorder="little").view(np.bool_)
    if bits[count:].any():
        raise CorruptMessage(f"positions: bits behind those of {what} are set")
    return bits[:count]


def bit_bytes(count: int) -> int:
    """Bytes of `write_bits`."""
    return -(-count // 8)
