"""From a device to the host, and back: what a pass selected, and what workers sent.

The device ends at the update. Messages are written and read in the CPU's memory, whatever device gradients
are on.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..ops.array import Array, host
from ..ops.interface import Ops
from ..ops.returns import Returns
from ..wire.columns.updates import UpdateColumns
from ..wire.quantized import Quantized
from ..wire.update import Update
from .incoming import Received

_Moved = Callable[[Array], Array]
"""An array as it is on the other side."""


def to_host(groups: Sequence[Sequence[Update]], returns: Returns) -> list[Sequence[Update]]:
    """Updates of a device in the CPU's memory. Waits once, also for what `returns` was asked for."""
    fetched = iter(returns.fetch_with([array for updates in groups for array in _arrays(updates)]))
    return [_with_arrays(updates, lambda _: next(fetched)) for updates in groups]


def to_device(received: Received, ops: Ops) -> Received:
    """Updates in the CPU's memory on a device, to be added there. Does not wait."""
    updates = [update for update, _ in received]
    placed = iter(ops.place_all([host(array) for array in _arrays(updates)]))
    moved = _with_arrays(updates, lambda _: next(placed))
    return [(update, unit) for update, (_, unit) in zip(moved, received, strict=True)]


def _arrays(updates: Sequence[Update]) -> list[Array]:
    """All arrays of updates, in the order in which `_with_arrays` asks for them."""
    found: list[Array] = []

    def keep(array: Array) -> Array:
        found.append(array)
        return array

    _with_arrays(updates, keep)
    return found


def _with_arrays(updates: Sequence[Update], moved: _Moved) -> Sequence[Update]:
    """Updates with other arrays; `moved` is called for all of them, in one order."""
    if isinstance(updates, UpdateColumns):
        words, values = updates.words, updates.values
        if words is not None:
            words = replace(words, array=moved(words.array))
        if values is not None:
            symbols, tables = moved(values.symbols), tuple(map(moved, values.tables))
            values = replace(values, symbols=symbols, tables=tables)
        return replace(updates, words=words, values=values)
    return [
        replace(
            update,
            words=None if update.words is None else moved(update.words),
            values=_values(update.values, moved),
        )
        for update in updates
    ]


def _values(values: Any, moved: _Moved) -> Any:
    if not isinstance(values, Quantized):
        return moved(values)
    return values.of(values.bits, values.block, moved(values.symbols), list(map(moved, values.tables())))
