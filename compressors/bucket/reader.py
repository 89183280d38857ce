"""Reads what the workers sent for a bucket, and checks it in every part before anything is added."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import CorruptMessage
from ..ops.array import Bytes
from ..ops.cpu.ops import CpuOps
from ..ops.faults import Faults
from ..ops.interface import Ops
from ..ops.results import Found
from ..ops.returns import Returns, Steps, run, together
from ..wire import message
from ..wire.columns.reading import read as read_columns
from ..wire.forms import FORMS, Form
from ..wire.message import NonFinite
from ..wire.update import Update
from .incoming import ColumnsReceived, Incoming
from .layout import Layout, Unit

FEW = 4
"""Messages below which it takes less time to take them one by one."""
Decoded = list[tuple[Update | NonFinite, Faults]]
_FoundByRank = list[list[Found] | str]
"""The messages of each payload, or what is wrong with their lengths."""
_Blame = Callable[[int, CorruptMessage], CorruptMessage]
"""Says which worker's message an error is about."""


class Reader:
    """Reads what others of the same method have sent; without state."""

    def __init__(self, form: Form, ops: Ops) -> None:
        """Prepares.

        Args:
            form: of what is not sent whole.
            ops: of the device where updates are to be.
        """
        self.form, self.ops = form, ops

    def read(self, payload: Bytes | Tensor, layout: Layout) -> Incoming:
        """What another worker sent for a bucket of the same layout.

        Args:
            payload: uint8, here or in the CPU's memory.
            layout: of the bucket.

        Raises:
            CorruptMessage: a message is damaged, of another method, or does not fit the layout.
        """
        row = torch.as_tensor(payload)
        return self._read_rows(row.reshape(1, -1), [row.numel()], layout, _same)[0]

    def read_all(self, padded: Tensor, sizes: Sequence[int], layout: Layout) -> list[Incoming]:
        """What every worker sent for a bucket of the same layout.

        Args:
            padded: uint8 [workers, longest], each worker's payload and padding; here, or in the CPU's memory,
                best in pinned memory.
            sizes: bytes of the payloads.
            layout: of the bucket.

        Raises:
            CorruptMessage: see `read`; it names the worker.
        """
        return self._read_rows(padded, sizes, layout, of_worker)

    def read_each(self, payloads: Sequence[Tensor], layout: Layout) -> list[Incoming]:
        """`read_all` of payloads wherever they lie in the CPU's memory, uint8, where buckets are, too."""
        assert self.ops.on_host
        arrays, most = [self.ops.array(each) for each in payloads], self._most_messages(layout)

        def found() -> _FoundByRank:
            return [self.ops.find_messages(each, each.size, [each.size], most)[0] for each in arrays]

        return self._read(arrays, found, layout, of_worker)

    def _read_rows(
        self, padded: Tensor, sizes: Sequence[int], layout: Layout, blame: _Blame
    ) -> list[Incoming]:
        stride, most = padded.shape[1], self._most_messages(layout)
        rows = self.ops.array(self.ops.bring(padded).reshape(-1))
        begins = [rank * stride for rank in range(len(sizes))]
        payloads = [rows[begin : begin + size] for begin, size in zip(begins, sizes, strict=True)]
        return self._read(payloads, lambda: self.ops.find_messages(rows, stride, sizes, most), layout, blame)

    def _read(
        self, payloads: Sequence[Any], find: Callable[[], _FoundByRank], layout: Layout, blame: _Blame
    ) -> list[Incoming]:
        """What payloads hold, uint8; `find` cuts them into messages, if they are to be read one by one."""
        at_once = [self._read_columns(payload, layout) for payload in payloads]
        if all(each is not None for each in at_once):
            return [each for each in at_once if each is not None]
        looks, last = Returns(self.ops), Returns(self.ops)
        works: list[Steps[Decoded]] = []
        about: list[list[Unit]] = []
        for rank, found in enumerate(find()):
            with _blaming(rank, blame):
                if isinstance(found, str):
                    raise CorruptMessage(found)
                refused = len(found) == 1 and message.is_refusal(found[0].header)
                about.append([] if refused else self._units_of(len(found), layout))
                elements = [unit.n for unit in about[-1]] or [layout.bucket_elements] * len(found)
            works.append(_blamed(self.decode(payloads[rank], found, elements, looks, last), rank, blame))
        read = run(looks, together(works))
        last.fetch()
        incoming: list[Incoming] = []
        for rank, (decoded, units) in enumerate(zip(read, about, strict=True)):
            with _blaming(rank, blame):
                incoming.append(self._checked(decoded, units, layout))
        return incoming

    def _read_columns(self, payload: Any, layout: Layout) -> Incoming | None:
        """What a payload holds, if it is easily told that it is right."""
        if not isinstance(self.ops, CpuOps):
            return None
        form, units, exempt = self.form, list(layout.units), layout.exempt
        if FORMS[form].sign_apart:
            units *= self._most_messages(layout) - 1  # tau is what a value means: one message for each
        if len(units) < FEW or form == "wgt" or message.is_alone(payload):
            return None
        n = layout.n if len(units) == len(layout.units) else np.full(len(units), units[0].n, np.int64)
        found = read_columns(form, n, payload, self.ops.threads, behind=0 if exempt is None else 1)
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
            update = message.read(last, exempt.n, self.ops)
        except CorruptMessage:
            return None
        if isinstance(update, NonFinite) or update.form != "f32" or update.words is not None:
            return None
        return replace(received, whole=((update, exempt),))

    def decode(
        self, payload: Any, found: Sequence[Found], elements: Sequence[int], looks: Returns, last: Returns
    ) -> Steps[Decoded]:
        """What messages seem to hold. Do not use it before `last` is fetched and their faults are checked."""
        faults = [self.ops.faults(last) for _ in found]
        updates = yield from message.read_all(payload, found, elements, faults, self.ops, looks)
        return list(zip(updates, faults, strict=True))

    def _checked(self, decoded: Decoded, units: Sequence[Unit], layout: Layout) -> Incoming:
        """What a payload holds, once all of it was found good."""
        for update, faults in decoded:
            faults.check()
            if isinstance(update, NonFinite):
                if units:
                    raise CorruptMessage("a refusal among updates")
                self._check_form(update.form)
                return update
        incoming: list[tuple[Update, Unit]] = []
        for (update, _), unit in zip(decoded, units, strict=True):
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


def _same(_: int, reason: CorruptMessage) -> CorruptMessage:
    return reason


@contextmanager
def _blaming(rank: int, blame: _Blame) -> Iterator[None]:
    """Makes errors say which worker's message they are about."""
    try:
        yield
    except CorruptMessage as reason:
        raise blame(rank, reason) from None


def _blamed(steps: Steps[Decoded], rank: int, blame: _Blame) -> Steps[Decoded]:
    with _blaming(rank, blame):
        return (yield from steps)
