"""What a row of the table measures, as data."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import NDArray

Array = NDArray[Any]

Quantity = Literal["floor", "rate", "over", "peer"]
_WORDS: dict[Quantity, tuple[str, Callable[[float, float], bool]]] = {
    "floor": ("{} floors", operator.le),
    "rate": ("{} M/s", operator.ge),
    "over": ("{}%", operator.le),
    "peer": ("{}x peer", operator.ge),
}


@dataclass(frozen=True)
class Goal:
    """What one thread should reach."""

    of: Quantity
    """`floor`: at most so many times the floor; `rate`: at least so many million items a second; `over`: at
    most so many % over the entropy bound; `peer`: at least so many times as fast as the first peer."""
    limit: float

    def verdict(self, value: float) -> str:
        """Met or missed; a statement, not a test."""
        words, reaches = _WORDS[self.of]
        return f"{words.format(f'{self.limit:g}')} {'met' if reaches(value, self.limit) else 'missed'}"


@dataclass(frozen=True)
class Peer:
    """The same work, done with another library in one thread."""

    name: str
    run: Callable[[], object]
    check: Callable[[], int | None]
    """Makes sure, before anything is timed, that the work is the same; returns the bytes that it writes, if
    it writes any.

    Raises:
        RuntimeError: it is not the same.
    """
    slow: bool = False
    """Takes so long that it is measured with the smallest gradient only."""


@dataclass(frozen=True)
class Case:
    """One row."""

    name: str
    items: int
    """What the rate counts: elements of the gradient, positions or symbols."""
    run: Callable[[int], object]
    """The work, with so many threads."""
    threads: tuple[int, ...] = (1, 2)
    """With how many threads it can run."""
    warm: bool = False
    """Each run that is timed comes right after one that is not: for what finds its input in the caches,
    where a pass has just left it."""
    size: int | None = None
    """Bytes that the items take."""
    bound: float | None = None
    """Bits that the best code for independent items would take."""
    peers: tuple[Peer, ...] = ()
    goals: tuple[Goal, ...] = ()

    def over(self, size: int | None) -> float | None:
        """How many % more than the bound."""
        return None if size is None or self.bound is None else 100 * (8 * size / self.bound - 1)


@dataclass(frozen=True)
class Coding:
    """A way to write items and to read them back."""

    name: str
    encode: Callable[[int], Array]
    decode: Callable[[Array, int], Array]
    """Of what `encode` wrote."""
    threads: tuple[int, ...] = (1, 2)
    slow: bool = False


def require_same(what: str, same: bool) -> None:
    """For a peer's check.

    Raises:
        RuntimeError: it is not the same.
    """
    if not same:
        raise RuntimeError(f"{what}: the peer does other work")
