"""What a worker received from one of the others for a bucket."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias, overload

from ..ops.offsets import Numbers
from ..wire.columns.updates import UpdateColumns
from ..wire.message import NonFinite
from ..wire.update import Update
from .layout import Unit

Received: TypeAlias = Sequence[tuple[Update, Unit]]
"""Updates, and what each is about."""
Incoming: TypeAlias = Received | NonFinite


@dataclass(frozen=True)
class ColumnsReceived(Sequence[tuple[Update, Unit]]):
    """Updates in the CPU's memory whose arrays are shared: they are added in one call."""

    updates: UpdateColumns
    units: Sequence[Unit]
    """What each is about."""
    starts: Numbers
    """int64 [m], the element of the bucket with which the coordinates of each begin."""
    whole: tuple[tuple[Update, Unit], ...] = ()
    """What was sent whole, which comes behind them."""

    def __len__(self) -> int:
        return len(self.updates) + len(self.whole)

    def __iter__(self) -> Iterator[tuple[Update, Unit]]:
        return chain(zip(self.updates, self.units, strict=True), self.whole)

    @overload
    def __getitem__(self, number: int) -> tuple[Update, Unit]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[Update, Unit]]: ...
    def __getitem__(self, number: int | slice) -> tuple[Update, Unit] | list[tuple[Update, Unit]]:
        if isinstance(number, slice):
            return list(self)[number]
        own, number = len(self.updates), number + len(self) if number < 0 else number
        return (self.updates[number], self.units[number]) if number < own else self.whole[number - own]


def sent_in(received: Received) -> tuple[int, int]:
    """How many elements were sent, and their value bits as Anoosheh counts them."""
    sent = bits = 0
    if isinstance(received, ColumnsReceived):
        sent = int(received.updates.counts.sum())
        bits, received = sent * received.updates.value_bits, received.whole
    return (
        sent + sum(update.k for update, _ in received),
        bits + sum(update.paper_bits for update, _ in received),
    )
