"""Messages of compressed gradients, from every worker to every worker.

The residual of each parameter in a bucket is added to its gradient. A rule decides what to send and keeps the
rest. Updates become messages (`bucket.compressor.Compressor`), which all workers exchange. Every worker adds
them in rank order, so that replicas stay bit-identical.
"""

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.compressor import Incoming, Outgoing, compressor_for
from ..bucket.feedback import Feedback
from ..bucket.layout import Layout, Part
from ..bucket.ledger import Step
from ..errors import CorruptMessage, NonFiniteGradient
from ..exchange.buckets import Exchange
from ..exchange.carrier import Payload
from ..method.methods import CompressedMethod
from ..rules.base import Context
from ..spans import RECORDER
from ..wire.message import NonFinite
from .base import Bucket, Fail, Reducer


@dataclass(frozen=True)
class _Plan:
    """What is the same for a bucket in every step.

    Parameters are in the model's reverse order. DDP orders them differently in a process's first backward
    pass than in later ones, and what is sent, and its bytes, must not depend on that.
    """

    names: list[str]
    elements: list[int]
    """Of the parameters, in the order of the buffer."""
    places: list[int]
    """For each name, its index among these."""
    layout: Layout
    number: int
    """A number that is unique within a step and the same on every worker: that of its first parameter."""


class AllGather(Reducer):
    """Compression with residuals; see the module's text."""

    def __init__(
        self,
        config: CompressedMethod,
        group: dist.ProcessGroup,
        parameters: Mapping[str, Tensor],
        fail: Fail,
        *,
        feedback: Feedback,
        exchange: Exchange,
        threads: int,
        hold_back_zeros: bool,
        whole: Mapping[str, int] | None = None,
    ) -> None:
        """Prepares to synchronize these parameters; for arguments see `WorkerState`."""
        super().__init__(config, group, fail)
        # DDP's gradients are on one device.
        device = next((each.device for each in parameters.values()), torch.device("cpu"))
        self._compressor = compressor_for(config, device, threads)
        self._feedback, self._exchange = feedback, exchange
        self._context = Context(hold_back_zeros=hold_back_zeros)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(parameters)}
        self._elements = {name: parameter.numel() for name, parameter in parameters.items()}
        self._whole = self._elements if whole is None else whole
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._outgoing: list[tuple[Outgoing, list[Part], list[list[Tensor]] | None]] = []
        """What a step that may be skipped has sent; with a scaler, also what residuals were before it."""
        self._decoder = ThreadPoolExecutor(1, "taugrad-decode")
        """Adds up what has arrived beside the backward pass."""

    def begin(self, iteration: int) -> None:
        super().begin(iteration)
        self._context.iteration, self._context.memories = iteration, self._feedback.memories
        self._compressor = self._compressor.of(self._feedback.method)

    def settle(self, *, skipped: bool, stepped: Set[str]) -> None:
        for outgoing, parts, before in reversed(self._outgoing) if skipped else ():
            if before is None:
                unstepped = [replace(part, residual=None) if part.name in stepped else part for part in parts]
                self._compressor.put_back(outgoing, unstepped)
                continue
            for part, copies in zip(parts, before, strict=True):
                if part.name not in stepped:
                    for memory, copy in zip(_memory_of(part), copies, strict=True):
                        memory.copy_(copy)
        self._outgoing = []

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        plan, buffer = self._plan_of(bucket), bucket.buffer
        started = perf_counter()
        shares = torch.split(buffer, plan.elements)
        gradients = [(name, shares[place]) for name, place in zip(plan.names, plan.places, strict=True)]
        parts = self._feedback.parts(gradients, plan.layout, self._compressor)
        # A scaler drops the gradients of a step that overflows: many of them are far off.
        before = None
        if bucket.scale is not None:
            before = [[memory.clone() for memory in _memory_of(part)] for part in parts]
        own = self._compressor.compress(parts, plan.layout, self._context)
        if self._nonfinite == "skip":
            self._outgoing.append((own, parts, before))
        step.count_layers(own.tallies)
        step.keeps_residuals |= any(part.residual is not None for part in parts)
        compressed = perf_counter()
        step.compress_s += compressed - started
        RECORDER.add("compress", "compute", started, compressed, bucket.title)

        times = self._times
        times.began()
        arriving = self._exchange.start(own.payload, bucket.series + plan.number)
        step.elements += buffer.numel() * self._workers
        step.messages += self._workers * (self._workers - 1)

        def finish(gate: Future[Exception | None]) -> Tensor:
            problem, received = gate.value(), perf_counter()
            with self.reaching():
                if problem is not None:
                    raise problem
            messages = arriving.messages()
            incoming = self._read(parts, plan, messages)
            self._fill(buffer, incoming, parts)
            if bucket.scale is not None:
                buffer.mul_(bucket.scale)
            for each in incoming:
                if isinstance(each, NonFinite) and bucket.scale is not None:
                    parts[each.ordinal].gradient[0] = torch.inf  # for every worker's scaler to find
                # Zeros would look like gradients that were cleared, and a further pass like a new step.
                elif isinstance(each, NonFinite) and not (refused := parts[each.ordinal].gradient)[0]:
                    refused[0] = torch.finfo(buffer.dtype).tiny
            bucket.add_earlier(1.0)
            if buffer.is_cuda:  # what was sent knows nothing of streams
                torch.cuda.current_stream(buffer.device).synchronize()
            with self._lock:
                lengths = np.array([each.size for each in messages.values()])
                wire_bytes, received_bytes = self._exchange.count(lengths)
                step.wire_bytes += wire_bytes
                step.received_bytes += received_bytes
                for rank, each in enumerate(incoming):
                    if isinstance(each, NonFinite):
                        step.skip(parts[each.ordinal].name, rank)
                        continue
                    step.sent += sum(update.k for update in each)
                    step.paper_bits += sum(update.paper_bits for update in each)
            times.arrived(step, arriving.started, received, bucket.title)
            return buffer

        gate: Future[Exception | None] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        summed = gate.then(finish)
        if bucket.is_last:
            started = perf_counter()
            arriving.wait()
            times.held(started)
            gate.set_result(None)
        else:
            arriving.when_here(lambda problem: self._decoder.submit(gate.set_result, problem))
        return summed

    def _plan_of(self, bucket: Bucket) -> _Plan:
        key = tuple(bucket.names)
        plan = self._plans.get(key)
        if plan is None:
            elements = [self._elements[name] for name in bucket.names]
            places = sorted(range(len(key)), key=lambda place: -self._ordinals[key[place]])
            names = [key[place] for place in places]
            sizes, whole = ([of[name] for name in names] for of in (self._elements, self._whole))
            layout = self._compressor.layout(names, sizes, whole)
            plan = self._plans[key] = _Plan(
                names, elements, places, layout, min(map(self._ordinals.__getitem__, key))
            )
        return plan

    def _read(self, parts: Sequence[Part], plan: _Plan, messages: Mapping[int, Payload]) -> list[Incoming]:
        """Every worker's updates, checked. If one is not valid, none is applied."""
        try:
            incoming = self._compressor.read_all(messages, plan.layout)
        except CorruptMessage as reason:
            raise self._fail(reason) from None
        for rank, received in enumerate(incoming):
            if isinstance(received, NonFinite):
                if received.ordinal >= len(parts):
                    problem = CorruptMessage(
                        f"worker {rank} names parameter {received.ordinal} of the bucket, which has fewer"
                    )
                    raise self._fail(problem)
                if self._nonfinite == "refuse":
                    raise self._fail(NonFiniteGradient(parts[received.ordinal].name, rank))
        return incoming

    def _fill(self, buffer: Tensor, incoming: Sequence[Incoming], parts: Sequence[Part]) -> None:
        """Fills the buffer with the sum of the updates, added in rank order, or with their mean."""
        starts = [part.gradient.storage_offset() for part in parts]
        total = buffer if buffer.dtype == torch.float32 and starts == sorted(starts) else None
        if total is None:
            total = torch.empty_like(buffer, dtype=torch.float32)
        divisor = self._workers if self._reduction == "mean" else 1
        self._compressor.total(incoming, divisor, total)
        if total is not buffer:
            for part, share in zip(parts, torch.split(total, [part.elements for part in parts]), strict=True):
                part.gradient.copy_(share)


def _memory_of(part: Part) -> list[Tensor]:
    """Its residual and velocity, if it has them."""
    return [memory for memory in (part.residual, part.velocity) if memory is not None]
