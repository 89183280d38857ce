"""The body of a message that is being read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...errors import CorruptMessage
from ...ops.array import Array, Bytes
from ...ops.faults import Faults
from ...ops.interface import Ops
from ...ops.returns import Returns, Steps
from ..forms import Form

if TYPE_CHECKING:
    from .values import Symbols


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Head:
    """What a message's header says of its body."""

    form: Form
    n: int
    k: int
    tau: np.float32
    symbols: "Symbols"
    """How symbols stand in the values, where the form has any."""


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Reading:
    """Where a message is read, and where what is found goes to."""

    ops: Ops
    looks: Returns
    """What steps wait for."""
    faults: Faults


@dataclass(slots=True)  # not frozen: see `wire.update.Update`
class Body:
    """Bytes, of which the first are on the host."""

    array: Array
    """uint8."""
    start: Bytes
    """uint8, how they begin; all of them where they lie in the CPU's memory."""

    @property
    def size(self) -> int:
        """How many."""
        return int(self.array.size)

    def behind(self, at: int) -> "Body":
        """What stands from byte `at` on."""
        return Body(self.array[at:], self.start[at:])

    def look(self, at: int, size: int, reading: Reading) -> Steps[Bytes]:
        """Some of the bytes, on the host."""
        if at + size <= self.start.size:
            return self.start[at : at + size]
        slot = reading.looks.take(size, np.uint8)
        reading.ops.copy_bytes(self.array[at : at + size], slot.array)
        yield
        return slot.values


def need(body: Body, size: int, what: str) -> None:
    """Refuses a body that is shorter than a part of it must be."""
    if body.size < size:
        raise CorruptMessage(f"{body.size} bytes cannot hold {what}, which takes {size}")
