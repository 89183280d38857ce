"""Results of passes that may come later: on the CPU they are there at once, from a device after a fetch.

Small results of many kernels stand in one array on the device, so that one fetch brings all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .array import Array

_WORD = 8
_ROOM = 16384
"""64-bit words of an array, unless one result needs more."""


class Memory(Protocol):
    """Where results stand."""

    def zeros(self, size: int, dtype: Any) -> Any:
        """A one-dimensional array of zeros."""

    def fetch_all(self, arrays: Sequence[Any]) -> list[NDArray[Any]]:
        """Copies of arrays in the CPU's memory; waits once for what was started before."""


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
    """Room for results, in arrays of some thousand words that are filled one after the other."""

    def __init__(self, memory: Memory) -> None:
        """No results yet."""
        self._memory = memory
        self._arrays: list[Array] = []
        self._taken: list[tuple[int, int, Slot]] = []
        self._room = self._used = 0
        """Words of the last array, and how many of them are taken."""

    def take(self, size: int, dtype: Any) -> Slot:
        """Room for an array, which begins as zeros and at a multiple of 8 bytes."""
        words = -(-size * np.dtype(dtype).itemsize // _WORD)
        if words > self._room - self._used or not self._arrays:
            self._close_last()
            self._room, self._used = max(words, _ROOM), 0
            self._arrays.append(self._memory.zeros(self._room, np.int64))
        begin = self._used
        self._used += words
        slot = Slot(self._arrays[-1][begin : begin + words].view(dtype)[:size])
        self._taken.append((len(self._arrays) - 1, begin, slot))
        return slot

    def fetch(self) -> None:
        """Fills in `host` of every slot taken so far; waits once, if there are any."""
        if self._taken:
            self.fetch_with(())

    def fetch_with(self, others: Sequence[Any]) -> list[NDArray[Any]]:
        """The same, and copies of other arrays, which this returns; waits once."""
        self._close_last()
        whole = self._memory.fetch_all([*self._arrays, *others])
        copies = whole[len(self._arrays) :]
        for number, begin, slot in self._taken:
            size, dtype = int(slot.array.size), slot.array.dtype
            words = -(-size * dtype.itemsize // _WORD)
            slot.host = whole[number][begin : begin + words].view(dtype)[:size]
        self._arrays, self._taken, self._room, self._used = [], [], 0, 0
        return copies

    def _close_last(self) -> None:
        """Nothing more is put into the last array: what is left of it need not be fetched."""
        if self._arrays:
            self._arrays[-1] = self._arrays[-1][: self._used]


T = TypeVar("T")
Pending = Callable[[], T]
"""A result, to be asked for when what is returned was fetched."""
