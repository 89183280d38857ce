"""What a worker received from one of the others for a bucket."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

from torch import Tensor

from ..ops.array import host
from ..ops.cpu import dense_rows
from ..wire.dense.values import EveryElement
from ..wire.message import NonFinite
from ..wire.update import Update
from .layout import Layout, Unit

Received: TypeAlias = Sequence[tuple[Update, Unit]]
"""Updates, and what each is about."""
Incoming: TypeAlias = Received | NonFinite


@dataclass(frozen=True)
class DenseIncoming(Sequence[tuple[Update, Unit]]):
    """Updates of every element of a bucket's parameters, in the CPU's memory: they are added at once."""

    updates: EveryElement
    layout: Layout

    def __len__(self) -> int:
        return len(self.updates)

    @overload
    def __getitem__(self, number: int) -> tuple[Update, Unit]: ...
    @overload
    def __getitem__(self, number: slice) -> list[tuple[Update, Unit]]: ...
    def __getitem__(self, number: int | slice) -> tuple[Update, Unit] | list[tuple[Update, Unit]]:
        if isinstance(number, slice):
            return list(zip(self.updates[number], self.layout.units[number], strict=True))
        return self.updates[number], self.layout.units[number]

    @property
    def elements(self) -> int:
        """How many were sent."""
        return int(self.updates.values.offsets.sizes.sum())

    def add_to(self, total: Tensor) -> None:
        """Adds them to a bucket, float32 [bucket elements]."""
        values = self.updates.values
        dense_rows.add(
            values.form,
            host(values.symbols),
            (values.bits, values.block),
            tuple(map(host, values.tables)),
            values.offsets,
            total.numpy(),
            self.layout.starts,
        )


def sent_in(received: Received) -> tuple[int, int]:
    """How many elements were sent, and their value bits as Anoosheh counts them."""
    if isinstance(received, DenseIncoming):
        return received.elements, received.elements * received.updates.values.value_bits
    return sum(update.k for update, _ in received), sum(update.paper_bits for update, _ in received)
