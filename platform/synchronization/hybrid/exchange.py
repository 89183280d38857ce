"""How workers of the mode hybrid communicate while they compute: rows to all, or to each its part of a sum.

All workers make the same exchanges in the same order and know all shapes, so raw values need no header. A
worker sends, continues, and takes what the others sent when it needs it. 16 bits means bfloat16. It has the
range of float32, so gradients need no scale. A dense method makes a message of each tensor, without error
feedback: the next tensor is of other examples.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import prod
from time import perf_counter
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from taugrad.compressors.bucket.compressor import Compressor, Worker
from taugrad.compressors.bucket.layout import Shard
from taugrad.compressors.bucket.ledger import Step, Traffic
from taugrad.compressors.exchange.carrier import Carrier, Payload
from taugrad.compressors.exchange.lockstep import Coroutine
from taugrad.compressors.exchange.tensors import copy_bytes, to_bytes
from taugrad.compressors.methods import CompressedMethod
from taugrad.compressors.ops.array import host
from taugrad.compressors.ops.interface import Ops
from taugrad.compressors.spans import RECORDER, Interval, duration, union
from taugrad.compressors.wire.message import NonFinite

_NAME = "activations"


class DenseMessages(NamedTuple):
    """Messages of a dense method, one for a tensor."""

    method: CompressedMethod
    ops: Ops

    def of(self, elements: int) -> Compressor:
        """What makes and reads the message of a tensor with so many elements."""
        return Compressor(self.method, Worker(self.ops), Shard.whole({_NAME: elements}))


Encoding: TypeAlias = torch.dtype | DenseMessages
"""Of a tensor on its way: raw values of a type, or a message of a dense method."""


class Encoded(NamedTuple):
    """A tensor on its way."""

    payload: Payload
    decoded: Tensor
    """As the receivers read it, of the tensor's dtype and shape."""
    value_bits: int


def encode(tensor: Tensor, encoding: Encoding) -> Encoded:
    """Writes a tensor; a method's message of what is not finite says just that."""
    if isinstance(encoding, torch.dtype):
        sent = tensor.to(encoding)
        return Encoded(to_bytes([sent]), sent.to(tensor.dtype), 8 * sent.nbytes)
    outgoing = encoding.of(tensor.numel()).compress([tensor.flatten()], 0)
    payload = host(outgoing.payload)
    decoded = decode(payload, encoding, tensor.shape, tensor)
    return Encoded(payload, decoded, int(outgoing.tallies.paper_bits.sum()))


def decode(payload: Payload, encoding: Encoding, shape: Sequence[int], like: Tensor) -> Tensor:
    """Reads a tensor of a shape, on another one's device and of its dtype.

    NaN where the sender's was not finite somewhere. Raises CorruptMessage where the payload does not fit.
    """
    if isinstance(encoding, torch.dtype):
        received = torch.empty(tuple(shape), dtype=encoding)
        copy_bytes(payload, [received])
        return received.to(like.device, like.dtype)
    compressor, total = encoding.of(prod(shape)), torch.empty(prod(shape), device=like.device)
    incoming = compressor.read(payload)
    if isinstance(incoming, NonFinite):
        total.fill_(torch.nan)
    else:
        compressor.total([incoming], 1, total)
    return total.view(tuple(shape)).to(like.dtype)


@dataclass(frozen=True)
class PendingReceive:
    """What one worker has sent, and what it will take."""

    label: str
    sent_at: float
    local: Tensor
    """Its own part, as the others receive it."""
    shapes: Sequence[Sequence[int]]
    """Shapes of what each worker sends, by rank."""
    encoding: Encoding
    messages: Mapping[int, Future[Payload]]
    """By sender."""


class ActivationExchange:
    """One worker's exchanges of an iteration.

    Attributes:
        rank: of this worker.
        traffic: what was sent and received.
    """

    def __init__(self, carrier: Carrier, values: Encoding) -> None:
        """Begins without any; values travel as `values`."""
        self.rank, self.traffic = carrier.rank, Traffic(carrier.workers)
        self._carrier, self._values, self._seconds = carrier, values, Step()
        self._under_way: list[Interval] = []

    def count(self, step: Step, traffic: Traffic) -> None:
        """Adds what was sent and received, and the seconds of that, to a step and to a worker's traffic."""
        traffic.add(self.traffic)
        step.add(self.traffic.sums)
        step.exchange_s += duration(union(self._under_way))
        step.blocked_s += self._seconds.blocked_s
        step.compress_s += self._seconds.compress_s
        step.decompress_s += self._seconds.decompress_s

    def to_all(
        self, label: str, local: Tensor, shapes: Sequence[Sequence[int]], *, values: bool = True
    ) -> PendingReceive:
        """Starts to send a tensor to all other workers, as all do; `shapes` are each worker's, by rank.

        `values`: whether it is activations or their gradients, not labels or numbers.
        """
        assert tuple(local.shape) == tuple(shapes[self.rank]), "the others expect another shape"
        encoding = self._values if values else local.dtype
        (encoded,) = self._encoded([local], encoding)
        if others := list(self._carrier.others) if encoded.payload.nbytes else []:
            self.traffic.count_sent(encoded.payload.nbytes, others)
            self.traffic.sums.paper_bits += encoded.value_bits * values
        payloads = dict.fromkeys(others, encoded.payload)
        return self._send(label, payloads, encoded.decoded, shapes, encoding)

    def to_owners(self, label: str, parts: Sequence[Tensor]) -> PendingReceive:
        """Starts to send each other worker its part of a sum, as all do. Timelines have the label.

        A receiver's part has the same shape on all workers.
        """
        encoded = self._encoded(parts, self._values)
        payloads = {other: encoded[other].payload for other in self._carrier.others if parts[other].numel()}
        for other, payload in payloads.items():
            self.traffic.count_sent(payload.nbytes, [other])
            self.traffic.sums.paper_bits += encoded[other].value_bits
        local = encoded[self.rank].decoded
        return self._send(label, payloads, local, [local.shape] * len(parts), self._values)

    def _encoded(self, tensors: Sequence[Tensor], encoding: Encoding) -> list[Encoded]:
        began = perf_counter()
        encoded = [encode(tensor, encoding) for tensor in tensors]
        self._seconds.compress_s += perf_counter() - began
        return encoded

    def _send(
        self,
        label: str,
        payloads: Mapping[int, Payload],
        local: Tensor,
        shapes: Sequence[Sequence[int]],
        encoding: Encoding,
    ) -> PendingReceive:
        for other, payload in payloads.items():
            self._carrier.send(other, label, payload)
        senders = [other for other in self._carrier.others if prod(shapes[other])]
        messages = {sender: self._carrier.receive(sender, label) for sender in senders}
        return PendingReceive(label, perf_counter(), local, shapes, encoding, messages)

    def taken(self, pending: PendingReceive) -> Coroutine[list[Tensor]]:
        """Waits for what each worker sent, by rank; its own is rounded as for the others.

        Raises CorruptMessage: what arrived has a wrong length, or is no message of the method.
        """
        yield None
        asked = perf_counter()
        timeout = None if self._carrier.waits else 0
        arrived = {sender: message.result(timeout) for sender, message in pending.messages.items()}
        now = perf_counter()
        if arrived:
            self._seconds.blocked_s += now - asked
            self._under_way.append((pending.sent_at, now))
            RECORDER.add("exchange", "wire", pending.sent_at, now, pending.label)
            RECORDER.add("wait", "compute", asked, now)
        tensors = {self.rank: pending.local}
        for rank in self._carrier.others:
            shape = pending.shapes[rank]
            if rank in arrived:
                self.traffic.sums.received_bytes += arrived[rank].nbytes
                tensors[rank] = decode(arrived[rank], pending.encoding, shape, pending.local)
            else:
                tensors[rank] = pending.local.new_empty(tuple(shape))
        self._seconds.decompress_s += perf_counter() - now
        return [tensors[rank] for rank in range(len(tensors))]


def added(parts: Sequence[Tensor]) -> Tensor:
    """Adds up what workers sent, from zeros and in rank order, so that all workers get the same bits."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total
