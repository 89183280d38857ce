"""How workers of the mode hybrid communicate while they compute: rows to all, or to each its part of a sum.

All workers make the same exchanges in the same order and know all shapes, so nothing needs a header. A worker
sends, continues, and takes what the others sent when it needs it. 16 bits means bfloat16. It has the range of
float32, so gradients need no scale.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import prod
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from taugrad.compressors.bucket.ledger import Traffic
from taugrad.compressors.exchange.carrier import Carrier, Payload
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.tensors import copy_bytes, to_bytes
from taugrad.compressors.spans import RECORDER, Interval, duration, union


@dataclass(frozen=True)
class PendingReceive:
    """What one worker has sent, and what it will take."""

    label: str
    sent_at: float
    local: Tensor
    """Its own part, as the others receive it."""
    shapes: Sequence[Sequence[int]]
    """Shapes of what each worker sends, by rank."""
    dtype: torch.dtype
    """On the way."""
    messages: Mapping[int, Future[Payload]]
    """By sender."""


class Exchange:
    """One worker's exchanges of an iteration.

    Attributes:
        rank: of this worker.
        blocked_s: the part of `exchange_s` in which nothing was computed.
    """

    def __init__(self, carrier: Carrier, values: torch.dtype, traffic: Traffic) -> None:
        """Begins without any; values travel as `values`, `traffic` counts what is sent and received."""
        self.rank, self.blocked_s = carrier.rank, 0.0
        self._carrier, self._values, self._traffic = carrier, values, traffic
        self._under_way: list[Interval] = []

    @property
    def exchange_s(self) -> float:
        """Seconds during which anything was under way, from sending to taking."""
        return duration(union(self._under_way))

    def to_all(
        self, label: str, local: Tensor, shapes: Sequence[Sequence[int]], *, values: bool = True
    ) -> PendingReceive:
        """Starts to send a tensor to all other workers, as all do; `shapes` are each worker's, by rank.

        `values`: whether it is activations or their gradients, not labels or numbers.
        """
        sent = local.to(self._values) if values else local
        assert tuple(sent.shape) == tuple(shapes[self.rank]), "the others expect another shape"
        sizes = np.array([prod(shape) for shape in shapes], np.int64) * sent.element_size()
        lengths = np.repeat(sizes[:, None], len(shapes), axis=1)
        np.fill_diagonal(lengths, 0)
        self._count(lengths, handed_over=lengths.max(axis=1), values=values)
        payloads = dict.fromkeys(self._carrier.others, to_bytes([sent]))
        return self._send(label, payloads, lengths, sent.to(local.dtype), shapes, sent.dtype)

    def to_owners(self, label: str, parts: Sequence[Tensor]) -> PendingReceive:
        """Starts to send each other worker its part of a sum, as all do. Timelines have the label.

        A receiver's part has the same shape on all workers.
        """
        sent = [part.to(self._values) for part in parts]
        lengths = np.repeat(np.array([[tensor.nbytes for tensor in sent]]), len(parts), axis=0)
        np.fill_diagonal(lengths, 0)
        self._count(lengths, handed_over=lengths.sum(axis=1), values=True)
        sent_here = sent[self.rank].to(parts[self.rank].dtype)
        payloads = {other: to_bytes([sent[other]]) for other in self._carrier.others}
        return self._send(label, payloads, lengths, sent_here, [sent_here.shape] * len(parts), self._values)

    def _send(
        self,
        label: str,
        payloads: Mapping[int, Payload],
        lengths: NDArray[np.int64],
        local: Tensor,
        shapes: Sequence[Sequence[int]],
        dtype: torch.dtype,
    ) -> PendingReceive:
        for other in self._carrier.others:
            if lengths[self.rank, other]:
                self._carrier.send(other, label, payloads[other])
        senders = [other for other in self._carrier.others if lengths[other, self.rank]]
        messages = {sender: self._carrier.receive(sender, label) for sender in senders}
        return PendingReceive(label, perf_counter(), local, shapes, dtype, messages)

    def _count(self, lengths: NDArray[np.int64], handed_over: NDArray[np.int64], *, values: bool) -> None:
        """Counts what this worker sends and receives; what goes to all is handed over once."""
        traffic, rank, nbytes = self._traffic, self.rank, int(handed_over[self.rank])
        traffic.sums.wire_bytes += nbytes
        traffic.sums.paper_bits += 8 * nbytes * values
        traffic.sums.received_bytes += int(lengths[:, rank].sum())
        traffic.sums.messages += int((lengths[rank] > 0).sum())
        traffic.link_bytes[rank] += lengths[rank]
        traffic.link_messages[rank] += lengths[rank] > 0

    def taken(self, pending: PendingReceive) -> Coroutine[list[Tensor]]:
        """Waits for what each worker sent, by rank; its own is rounded as for the others.

        Raises CorruptMessage: what arrived has a wrong length.
        """
        yield None
        asked = perf_counter()
        arrived = {sender: message.result() for sender, message in pending.messages.items()}
        if arrived:
            now = perf_counter()
            self.blocked_s += now - asked
            self._under_way.append((pending.sent_at, now))
            RECORDER.add("exchange", "wire", pending.sent_at, now, pending.label)
            RECORDER.add("wait", "compute", asked, now)
        tensors = {self.rank: pending.local}
        for rank in self._carrier.others:
            received = torch.empty(tuple(pending.shapes[rank]), dtype=pending.dtype)
            if rank in arrived:
                copy_bytes(arrived[rank], [received])
            tensors[rank] = received.to(pending.local.device, pending.local.dtype)
        return [tensors[rank] for rank in range(len(tensors))]


def added(parts: Sequence[Tensor]) -> Tensor:
    """Adds up what workers sent, from zeros and in rank order, so that all workers get the same bits."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total
