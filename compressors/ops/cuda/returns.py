"""Small results of many kernels in one array on the device, so that one fetch brings all of them."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .runtime import Runtime

_WORD = 8
_ROOM = 4096
"""64-bit words of an array, unless one result needs more."""


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


class Returns:
    """Room for results, in arrays of some thousand words that are filled one after the other."""

    def __init__(self, runtime: Runtime) -> None:
        """No results yet."""
        self._runtime = runtime
        self._arrays: list[Any] = []
        self._taken: list[tuple[int, int, Slot]] = []
        self._room = self._used = 0

    def take(self, size: int, dtype: Any) -> Slot:
        """Room for an array, which begins as zeros and at a multiple of 8 bytes."""
        words = -(-size * np.dtype(dtype).itemsize // _WORD)
        if words > self._room - self._used or not self._arrays:
            self._room, self._used = max(words, _ROOM), 0
            self._arrays.append(self._runtime.zeros(self._room, np.int64))
        begin = self._used
        self._used += words
        slot = Slot(self._arrays[-1][begin : begin + words].view(dtype)[:size])
        self._taken.append((len(self._arrays) - 1, begin, slot))
        return slot

    def fetch(self) -> None:
        """Fills in `host` of every slot taken so far; waits once, if there are any."""
        if not self._taken:
            return
        whole = self._runtime.fetch_all(self._arrays)
        for number, begin, slot in self._taken:
            size, dtype = int(slot.array.size), slot.array.dtype
            words = -(-size * dtype.itemsize // _WORD)
            slot.host = whole[number][begin : begin + words].view(dtype)[:size]
        self._arrays, self._taken, self._room, self._used = [], [], 0, 0


T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that yields where it needs what it has asked `Returns` for; many such works wait together."""


def run_together(returns: Returns, works: Iterable[Steps[T]]) -> list[T]:
    """Runs works, each up to where it needs a fetch, fetches for all, and so on.

    Waits as often as the work with the most steps, however many there are.

    Args:
        returns: where all of them ask for results.
        works: none of them started.

    Returns:
        What each work returned, in order.
    """
    waiting = dict(enumerate(works))
    done: dict[int, T] = {}
    while waiting:
        for number, work in list(waiting.items()):
            try:
                next(work)
            except StopIteration as finished:
                done[number] = finished.value
                del waiting[number]
        if waiting:
            returns.fetch()
    return [done[number] for number in sorted(done)]
