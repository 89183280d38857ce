"""The codec interface.

Contract: a codec's `code` is in every message that it wrote. Two codecs may share a code only if each reads
the other's bytes, and the bytes of a code never change their meaning.

A body is the positions, then the values. A codec decides how positions are encoded; `values.py` writes and
reads the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...ops.array import Bytes
from ...ops.cpu.ops import CpuOps
from ...ops.cpu.wire import Payload
from ..forms import FORMS, Form
from ..update import Chunks, Update
from .body import Head
from .values import read_values

__all__ = ["OTHERS", "Codec", "Head", "Measured", "PositionCodec"]

OTHERS = range(128, 256)
"""Codes of other packages' codecs."""


@dataclass(frozen=True, eq=False)
class Measured(ABC):
    """The part of some updates that a codec writes itself: the positions, or the whole body."""

    codec: "Codec"
    updates: Sequence[Update]
    sizes: Sequence[int]
    """Bytes of each, exactly."""

    @abstractmethod
    def write(self, which: Sequence[int], payload: Payload, begins: Sequence[int], ops: CpuOps) -> None:
        """Writes some of them.

        Args:
            which: their numbers.
            payload: zeros where a body is to stand. A few bytes behind a section may be overwritten.
            begins: where each body begins, ascending.
            ops: of the CPU.
        """


class Codec(ABC):
    """Writes the body of a message and reads it back; the header has form, n, k and tau."""

    name: ClassVar[str]
    code: ClassVar[int]
    """The code in messages: 0 to 127 are built-in, OTHERS are for other packages."""
    turn: ClassVar[int] = 0
    """Of several codecs with equally short output, `auto` takes the one with the lowest; it only takes
    built-in ones."""
    with_values: ClassVar[bool] = True
    """Whether the values follow what the codec writes."""

    @classmethod
    def problem(cls, name: str) -> str:
        """What keeps another package's codec from being used by a name; empty if nothing does."""
        if getattr(cls, "name", None) != name:
            return f'{cls.__name__} needs name = "{name}"'
        if getattr(cls, "code", None) not in OTHERS:
            return f"{cls.__name__} needs a code from {OTHERS.start} to {OTHERS.stop - 1}"
        return ""

    @abstractmethod
    def fits(self, update: Update) -> bool:
        """Whether the codec can write such an update."""

    @abstractmethod
    def measure(self, updates: Sequence[Update], ops: CpuOps) -> Measured:
        """Prepares to write some updates that fit, all of forms whose signs are apart or none of them."""

    @abstractmethod
    def read_all(self, bodies: Sequence[Bytes], heads: Sequence[Head], ops: CpuOps) -> list[Update]:
        """Reads some bodies of one form, at least one.

        Raises:
            CorruptMessage: one is nothing that is written for such a header.
        """


class OneByOne(Codec):
    """A codec that knows the size of its output in advance."""

    @abstractmethod
    def size(self, update: Update) -> int:
        """Bytes of what the codec writes itself, exactly."""

    @abstractmethod
    def write(self, update: Update, payload: Payload, at: int, size: int, ops: CpuOps) -> None:
        """Writes that from byte `at` on, where `size` bytes are zeros."""

    @abstractmethod
    def read(self, body: Bytes, head: Head, ops: CpuOps) -> Update:
        """Reads a body; see `Codec.read_all`."""

    def measure(self, updates: Sequence[Update], ops: CpuOps) -> Measured:
        """See `Codec.measure`."""
        return _Sized(self, updates, [self.size(update) for update in updates])

    def read_all(self, bodies: Sequence[Bytes], heads: Sequence[Head], ops: CpuOps) -> list[Update]:
        """See `Codec.read_all`."""
        return [self.read(body, head, ops) for body, head in zip(bodies, heads, strict=True)]


@dataclass(frozen=True, eq=False)
class _Sized(Measured):
    codec: OneByOne

    def write(self, which: Sequence[int], payload: Payload, begins: Sequence[int], ops: CpuOps) -> None:
        """See `Measured.write`."""
        for number, begin in zip(which, begins, strict=True):
            self.codec.write(self.updates[number], payload, begin, self.sizes[number], ops)


class ByCounts(OneByOne):
    """A built-in codec whose output's size follows from how many elements there are and are sent."""

    @abstractmethod
    def fits_form(self, form: Form, chunks: Chunks | None) -> bool:
        """Whether the codec can write positions of updates of a form, regular in such chunks if in any."""

    @abstractmethod
    def bytes_of(self, form: Form, n: Any, k: Any, chunks: Chunks | None) -> Any:
        """Bytes of what the codec writes itself.

        Args:
            form: of the updates.
            n: elements, a number or an array of them.
            k: elements sent, likewise.
            chunks: what positions are regular in, if they are.
        """

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is not None and self.fits_form(update.form, update.chunks)

    def size(self, update: Update) -> int:
        """See `OneByOne.size`."""
        return int(self.bytes_of(update.form, update.n, update.k, update.chunks))


class PositionCodec(OneByOne):
    """A codec whose body is a section of positions, then the values as they are."""

    keeps_signs: ClassVar[bool] = False
    """Whether words come back with their sign in any form; otherwise only where the form has it apart."""

    def fits(self, update: Update) -> bool:
        """See `Codec.fits`."""
        return update.words is not None

    def read(self, body: Bytes, head: Head, ops: CpuOps) -> Update:
        """See `OneByOne.read`."""
        words, used = self.read_positions(body, head, ops)
        behind = body[used:]
        return read_behind(words, behind, head, ops, keeps_signs=self.keeps_signs)

    @abstractmethod
    def read_positions(self, body: Bytes, head: Head, ops: CpuOps) -> tuple[Any, int]:
        """uint32 [k] words, ascending and below n, and how many bytes they took.

        Raises:
            CorruptMessage: see `read`.
        """


def read_behind(words: Any, body: Bytes, head: Head, ops: CpuOps, *, keeps_signs: bool) -> Update:
    """The update whose words were read.

    Args:
        words: uint32 [k].
        body: what stands behind them.
        head: what the header says.
        ops: of the CPU.
        keeps_signs: whether words have signs also where the form has them elsewhere.
    """
    values = read_values(body, head, ops)
    if head.form == "wgt":
        if not keeps_signs:
            ops.join_signs(words, values)
        ops.check_wgt(words, values, float(head.tau))
    elif keeps_signs and not FORMS[head.form].sign_apart:
        ops.check_no_signs(words)
    return Update(head.form, head.n, head.tau, words, values)


def words_of(update: Update) -> Any:
    """The words of an update that has some."""
    assert update.words is not None
    return update.words
