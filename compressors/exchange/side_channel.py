"""Side-channel data sent with each round: its number, examples that workers learned from, and buffers."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import CorruptMessage, WorkersDisagree
from .agreement import description, difference
from .carrier import Carrier, Payload
from .tensors import copy_bytes, to_bytes

_TAG = "side"
_HEADER = np.dtype([("fragment", "<i8"), ("round", "<i8"), ("left", "<i8"), ("examples", "<f8")])
_Header = NDArray[np.void]
"""[1]."""
_LENGTH = np.dtype("<i8")
LEFT = "rounds left in finish()"


class SideData(NamedTuple):
    """What all workers sent beside a round."""

    examples: float | None
    """The sum of all workers'; None where workers do not weigh."""
    buffers: Mapping[str, Tensor]
    """Worker 0's, by name, in the CPU's memory."""
    finished: int | None = None
    """A worker whose `finish()` ended with this round, where that of this one did not."""


class SideChannel:
    """What workers send one another with a round's messages, beside them."""

    def __init__(
        self,
        carrier: Carrier,
        round_id: tuple[int, int, int],
        examples: float | None,
        buffers: Mapping[str, Tensor],
    ) -> None:
        """Sends it; the same kinds of data are sent by all workers.

        Args:
            carrier: this worker's.
            round_id: the fragment, its rounds before this one, and the rounds after it in the same `finish()`
                (-1 outside). Workers whose rounds differ must not be merged.
            examples: None where workers do not weigh.
            buffers: by name; worker 0's are sent.
        """
        self._rank, self._buffers, self._finishes = carrier.rank, buffers, round_id[-1] >= 0
        self._header = np.array([(*round_id, float("nan") if examples is None else examples)], _HEADER)
        self._sent = np.empty(0, np.uint8) if carrier.rank else _buffer_bytes(buffers)
        message = np.concatenate([self._header.view(np.uint8), self._sent])
        for other in carrier.others:
            carrier.send(other, _TAG, message)
        # In the order in which all send: rounds may be waited for in another order.
        self._receiving = [(source, carrier.receive(source, _TAG)) for source in carrier.others]

    @cached_property
    def received(self) -> SideData:
        """Waits for all workers' data.

        Raises:
            WorkersDisagree: another worker is in another round, or its buffers have other shapes or dtypes.
            PeerLost: one is gone.
            CorruptMessage: its data are damaged.
        """
        headers, sent = {self._rank: self._header}, self._sent
        for source, receiving in self._receiving:
            message = receiving.result()
            if message.size < _HEADER.itemsize:
                raise CorruptMessage(f"worker {source} sent {message.size} bytes beside a round")
            headers[source] = message[: _HEADER.itemsize].view(_HEADER)
            if source == 0:
                sent = message[_HEADER.itemsize :]
            self._require_same_round(source, headers[source])
        examples = sum(headers[rank]["examples"].item() for rank in sorted(headers))
        ended = [rank for rank, header in headers.items() if not header["left"] and not self._finishes]
        total = None if np.isnan(examples) else examples
        return SideData(total, self._read_buffers(sent), ended[0] if ended else None)

    def _require_same_round(self, source: int, header: _Header) -> None:
        expected, received = _described(self._header), _described(header)
        if len(expected) != len(received):  # one finishes where the other has a round as usual
            expected, received = ({**fields, LEFT: ""} for fields in (expected, received))
        if expected != received:
            raise WorkersDisagree(difference({source: received, self._rank: expected}))

    def _read_buffers(self, sent: Payload) -> dict[str, Tensor]:
        try:
            length = int(sent[: _LENGTH.itemsize].view(_LENGTH)[0])
            text, data = np.split(sent[_LENGTH.itemsize :], [length])
            received = {str(name): str(field) for name, field in json.loads(text.tobytes()).items()}
        except (ValueError, IndexError, AttributeError):
            raise CorruptMessage(f"{sent.size} bytes of buffers of worker 0, which cannot be read") from None
        expected = buffer_fields(self._buffers)
        if expected != received:
            raise WorkersDisagree(difference({0: received, self._rank: expected}))
        values = {name: buffer.detach().cpu().clone() for name, buffer in self._buffers.items()}
        copy_bytes(data, list(values.values()))
        return values


def buffer_fields(buffers: Mapping[str, Tensor]) -> dict[str, str]:
    """What workers' buffers have in common, as fields and values."""
    return {f"buffer {name!r}": description(buffer) for name, buffer in buffers.items()}


def _buffer_bytes(buffers: Mapping[str, Tensor]) -> Payload:
    """Their fields, as the length of their JSON and the JSON; then their values."""
    text = np.frombuffer(json.dumps(buffer_fields(buffers)).encode(), np.uint8)
    return np.concatenate([np.array([text.size], _LENGTH).view(np.uint8), text, to_bytes(buffers.values())])


def _described(header: _Header) -> dict[str, str]:
    fragment, number, left, examples = header[0].tolist()
    given = "none" if np.isnan(examples) else "given"
    fields = {"fragment": str(fragment), "round": str(number), "examples": given}
    return fields if left < 0 else {**fields, LEFT: str(left)}
