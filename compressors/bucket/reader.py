"""Reads what the workers sent for a bucket, and checks it in every part before anything is added."""

from collections.abc import Sequence
from typing import TypeAlias

from ..errors import CorruptMessage
from ..method.base import Form
from ..ops.array import Bytes
from ..ops.segments import Segments
from ..wire import message
from ..wire.message import NonFinite
from ..wire.update import Update
from .layout import Layout

Received: TypeAlias = Sequence[Update]
"""What one worker sent: what it compressed, and what it sent whole; what there is of both."""
Incoming: TypeAlias = Received | NonFinite


class Reader:
    """Reads what others of the same method have sent; without state."""

    def __init__(self, form: Form, threads: int) -> None:
        """Prepares.

        Args:
            form: of what is not sent whole.
            threads: how many may work at once. No result depends on it.
        """
        self.form, self.threads = form, threads

    def read(self, payload: Bytes, layout: Layout) -> Incoming:
        """What another worker sent for a bucket of the same layout.

        Args:
            payload: uint8.
            layout: of the bucket.

        Raises:
            CorruptMessage: a message is damaged, of another method, or does not fit the layout.
        """
        if message.is_refusal(payload):
            refusal = message.read_nonfinite(payload, layout.bucket_elements)
            self._check_form(refusal.form)
            return refusal
        updates = []
        if len(layout.sent):
            updates.append(self._read_first(payload, layout.sent))
            self._check_form(updates[0].form)
            payload = payload[message.length_of(payload) :]
        if len(layout.whole):
            updates.append(self._read_first(payload, layout.whole))
            if updates[-1].form != "f32" or updates[-1].k != layout.whole.n:
                raise CorruptMessage(f"{updates[-1].form} where parameters are sent whole")
            payload = payload[message.length_of(payload) :]
        if payload.size:
            raise CorruptMessage(f"{payload.size} bytes follow the last message")
        return updates

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

    def _read_first(self, payload: Bytes, segments: Segments) -> Update:
        return message.read(payload[: message.length_of(payload)], segments, self.threads)

    def _check_form(self, form: str) -> None:
        if form != self.form:
            raise CorruptMessage(f"it is of {form}, this worker sends {self.form}")


def of_worker(rank: int, reason: CorruptMessage) -> CorruptMessage:
    """The same reason, and the worker whose message it is about."""
    return CorruptMessage(f"the message of worker {rank}: {reason}")
