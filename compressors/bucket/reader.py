"""Reads what the workers sent for a bucket, and checks it in every part before anything is added."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import CorruptMessage
from ..ops.array import Bytes
from ..ops.cpu.ops import CpuOps
from ..ops.cpu.wire import find_messages
from ..wire import message
from ..wire.columns.reading import read as read_columns
from ..wire.forms import FORMS, Form
from ..wire.message import NonFinite
from ..wire.update import Update
from .incoming import ColumnsReceived, Incoming
from .layout import Layout, Unit

FEW = 4
"""Messages below which it takes less time to take them one by one."""


class Reader:
    """Reads what others of the same method have sent; without state."""

    def __init__(self, form: Form, wire: CpuOps) -> None:
        """Prepares.

        Args:
            form: of what is not sent whole.
            wire: reads messages, and writes them.
        """
        self.form, self.wire = form, wire

    def read(self, payload: Bytes, layout: Layout) -> Incoming:
        """What another worker sent for a bucket of the same layout.

        Args:
            payload: uint8.
            layout: of the bucket.

        Raises:
            CorruptMessage: a message is damaged, of another method, or does not fit the layout.
        """
        received = self._read_columns(payload, layout)
        return self._read_one_by_one(payload, layout) if received is None else received

    def read_all(self, payloads: Sequence[Bytes], layout: Layout) -> list[Incoming]:
        """What every worker sent for a bucket of the same layout; see `read`.

        Raises:
            CorruptMessage: see `read`; it names the worker.
        """
        read = []
        for rank, payload in enumerate(payloads):
            try:
                read.append(self.read(payload, layout))
            except CorruptMessage as reason:
                raise of_worker(rank, reason) from None
        return read

    def _read_one_by_one(self, payload: Bytes, layout: Layout) -> Incoming:
        found = find_messages(payload, self._most_messages(layout))
        refused = len(found) == 1 and message.is_refusal(found[0])
        units = [] if refused else self._units_of(len(found), layout)
        elements = [unit.n for unit in units] or [layout.bucket_elements] * len(found)
        return self._checked(message.read_all(found, elements, self.wire), units, layout)

    def _read_columns(self, payload: Bytes, layout: Layout) -> Incoming | None:
        """What a payload holds, if it is easily told that it is right."""
        form, units, exempt = self.form, list(layout.units), layout.exempt
        if FORMS[form].sign_apart:
            units *= self._most_messages(layout) - 1  # tau is what a value means: one message for each
        if len(units) < FEW or form == "wgt" or message.is_alone(payload):
            return None
        n = layout.n if len(units) == len(layout.units) else np.full(len(units), units[0].n, np.int64)
        found = read_columns(form, n, payload, self.wire.threads, behind=0 if exempt is None else 1)
        if found is None:
            return None
        columns, end = found
        # Positions count from a unit's base; that of a parameter alone is where it begins.
        starts = layout.starts if len(units) == len(layout.units) else np.full(len(units), units[0].base)
        received = ColumnsReceived(columns, units[: len(columns)], starts[: len(columns)])
        return received if exempt is None else self._with_whole(received, payload[end:], exempt)

    def _with_whole(self, received: ColumnsReceived, last: Any, exempt: Unit) -> ColumnsReceived | None:
        """The same, and what was sent whole, from the last message; None if that is not right."""
        try:
            update = message.read(last, exempt.n, self.wire)
        except CorruptMessage:
            return None
        if isinstance(update, NonFinite) or update.form != "f32" or update.words is not None:
            return None
        return replace(received, whole=((update, exempt),))

    def _checked(
        self, decoded: Sequence[Update | NonFinite], units: Sequence[Unit], layout: Layout
    ) -> Incoming:
        """What a payload holds, if its messages go together."""
        for update in decoded:
            if isinstance(update, NonFinite):
                if units:
                    raise CorruptMessage("a refusal among updates")
                self._check_form(update.form)
                return update
        incoming: list[tuple[Update, Unit]] = []
        for update, unit in zip(decoded, units, strict=True):
            assert isinstance(update, Update)
            if unit is not layout.exempt:
                self._check_form(update.form)
            elif update.form != "f32" or update.words is not None:
                raise CorruptMessage(f"{update.form} where parameters are sent whole")
            incoming.append((update, unit))
        self._check_taus([update for update, unit in incoming if unit is not layout.exempt])
        return incoming

    def _most_messages(self, layout: Layout) -> int:
        """How many messages a payload may have."""
        return max(sum(len(unit.places) for unit in layout.units), 1) + 1

    def _units_of(self, messages: int, layout: Layout) -> list[Unit]:
        """What each message of a payload must be about, in order.

        Raises:
            CorruptMessage: there are too few of them, or too many.
        """
        if layout.exempt is not None:
            if not messages:
                raise CorruptMessage("the message of the parameters that are sent whole is missing")
            messages -= 1
        units = list(layout.units)
        if messages and FORMS[self.form].sign_apart:
            units *= messages  # tau is what a value means: one message for each
        if messages != len(units):
            raise CorruptMessage(f"{messages} messages for {len(units)} parameters")
        return units if layout.exempt is None else [*units, layout.exempt]

    def _check_taus(self, updates: Sequence[Update]) -> None:
        """Whether the messages of one bucket are in order."""
        if FORMS[self.form].sign_apart and any(low.tau >= high.tau for low, high in pairwise(updates)):
            raise CorruptMessage("messages of one bucket do not ascend in tau")

    def _check_form(self, form: str) -> None:
        if form != self.form:
            raise CorruptMessage(f"it is of {form}, this worker sends {self.form}")


def of_worker(rank: int, reason: CorruptMessage) -> CorruptMessage:
    """The same reason, and the worker whose message it is about."""
    return CorruptMessage(f"the message of worker {rank}: {reason}")
