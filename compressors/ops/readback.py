"""Results of passes that may come later: on the CPU they are there at once, from a device after a fetch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Memory(Protocol):
    """Where results stand; see `Ops`."""

    def zeros(self, size: int, dtype: Any) -> Any:
        """An array of zeros."""

    def fetch_all(self, arrays: Sequence[Any]) -> list[NDArray[Any]]:
        """Copies of arrays in the CPU's memory."""


@dataclass
class Slot:
    """One result."""

    array: Any
    """For kernels: on the device, zeros at first."""
    host: NDArray[Any] | None = None
    """What it was when it was fetched."""

    @property
    def values(self) -> NDArray[Any]:
        """What was fetched."""
        assert self.host is not None, "nothing was fetched yet"
        return self.host


class Readback:
    """Room for results that are fetched together."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._slots: list[Slot] = []

    def take(self, size: int, dtype: Any) -> Slot:
        """Room for an array, which begins as zeros."""
        slot = Slot(self._memory.zeros(size, dtype))
        self._slots.append(slot)
        return slot

    def forget(self) -> None:
        """Drops what nobody will ask for."""
        self._slots = []

    def fetch(self) -> None:
        """Fills in `host` of every slot taken so far; waits once, if there are any."""
        if self._slots:
            self.fetch_with(())

    def fetch_with(self, others: Sequence[Any]) -> list[NDArray[Any]]:
        """The same, and copies of other arrays, which this returns; waits once."""
        slots, self._slots = self._slots, []
        copies = self._memory.fetch_all([*(slot.array for slot in slots), *others])
        for slot, copy in zip(slots, copies, strict=False):
            slot.host = copy
        return copies[len(slots) :]


T = TypeVar("T")
Pending = Callable[[], T]
"""A result, to be asked for when what is returned was fetched."""
