"""Messages of compressed gradients, from every worker to every worker.

The residual of each parameter in a bucket is added to its gradient. A rule decides what to send and keeps the
rest. Updates become messages (`bucket.compressor.Compressor`), which all workers exchange. Every worker adds
them in rank order, so that replicas stay bit-identical.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..backend import compressor_for
from ..bucket.compressor import Outgoing
from ..bucket.feedback import Feedback
from ..bucket.layout import Layout, Part
from ..bucket.ledger import Step
from ..bucket.reader import Incoming
from ..config.methods import CompressedMethod
from ..errors import CorruptMessage, NonFiniteGradient, WorkersDisagree
from ..gloo_threads import Once
from ..rules.base import Context
from ..spans import RECORDER
from ..wire.exchange import Exchange
from ..wire.gathering import Gathering
from ..wire.message import VERSION, NonFinite
from .base import Bucket, Fail, Protocol, transport_of


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

    def gradients(self, buffer: Tensor) -> list[tuple[str, Tensor]]:
        """The name of each parameter, and its share of the buffer."""
        shares = torch.split(buffer, self.elements)
        return [(name, shares[place]) for name, place in zip(self.names, self.places, strict=True)]


@dataclass(frozen=True)
class _Shares:
    """The shares of a bucket's buffer, kept from step to step."""

    plan: _Plan
    at: tuple[int, torch.dtype]
    """Where the buffer lies, and its type. Shares keep its memory, so no other can lie there."""
    gradients: list[tuple[str, Tensor]]


@dataclass(frozen=True)
class _Turn:
    """A bucket's exchange that is under way."""

    gathering: Gathering
    gate: Future[Exception | None]
    """Resolves when the messages have arrived, or with an error. The bucket is then summed up."""

    def open(self, arrived: Future[Any]) -> None:
        """Reports that the messages have arrived, if all of them are complete."""
        try:
            arrived.value()  # raises what the transport raised
        except Exception as problem:
            self.gate.set_result(problem)
        else:
            if self.gathering.is_whole():
                self.gate.set_result(None)

    def give_up(self, problem: Exception) -> None:
        """Lets go of whoever waits for what does not come any more."""
        with suppress(RuntimeError):  # it has come at this very moment
            if not self.gate.done():
                self.gate.set_result(problem)


@contextmanager
def _all_or_none(turns: Sequence[_Turn]) -> Iterator[None]:
    """Gives turns up where one of them fails inside: the interpreter's end would wait for their callbacks."""
    try:
        yield
    except Exception as problem:
        for turn in turns:
            turn.give_up(problem)
        raise


class AllGather(Protocol):
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
    ) -> None:
        """Prepares to synchronize these parameters; for arguments see `protocol_for`."""
        super().__init__(config, group, fail)
        # DDP's gradients are on one device.
        device = next((each.device for each in parameters.values()), torch.device("cpu"))
        self._compressor = compressor_for(config, device, threads)
        self._feedback, self._exchange = feedback, exchange
        self._context = Context(hold_back_zeros=hold_back_zeros)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(parameters)}
        self._elements = {name: parameter.numel() for name, parameter in parameters.items()}
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._shares: dict[int, _Shares] = {}
        """By a bucket's number. When DDP cuts its first buckets anew, the numbers of these are among the new
        ones, so that the memory of the old buckets is let go."""
        self._outgoing: list[tuple[Outgoing, list[Part]]] = []
        self._unsent: list[_Turn] = []
        self._waiting: list[_Turn] = []

    def begin(self, iteration: int) -> None:
        """See `Protocol.begin`."""
        super().begin(iteration)
        self._context.iteration, self._context.memories = iteration, self._feedback.memories
        self._compressor = self._compressor.of(self._feedback.method)
        self._unsent, self._waiting = [], []

    def _gradients(self, plan: _Plan, buffer: Tensor) -> list[tuple[str, Tensor]]:
        """See `_Plan.gradients`."""
        at, kept = (buffer.data_ptr(), buffer.dtype), self._shares.get(plan.number)
        if kept is None or kept.plan is not plan or kept.at != at:
            kept = self._shares[plan.number] = _Shares(plan, at, plan.gradients(buffer))
        return kept.gradients

    def meet(self, transport: torch.device) -> None:
        """See `Protocol.meet`."""
        try:
            self._exchange.meet(self._group, transport)
        except WorkersDisagree as problem:
            raise self._fail(problem) from None

    def settle(self, *, skipped: bool) -> None:
        """See `Protocol.settle`."""
        if skipped:
            for outgoing, parts in self._outgoing:
                self._compressor.put_back(outgoing, parts)
        self._outgoing = []

    def ways(self, bucket: Bucket) -> dict[str, str]:
        """See `Protocol.ways`."""
        sites = self._exchange.sites
        return {
            "exchange": self._exchange.form,
            "messages": "authenticated" if self._exchange.is_authenticated else "not authenticated",
            **({"sites": str(sites or "by host")} if self._exchange.form == "hierarchical" else {}),
            "room": str(self._exchange.capacities.get(self._plan_of(bucket).number)),
            "message version": str(VERSION),
        }

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        """See `Protocol.synchronize`."""
        plan, buffer = self._plan_of(bucket), bucket.buffer
        self._send()

        started = perf_counter()
        parts = self._feedback.parts(self._gradients(plan, buffer), plan.layout, self._compressor)
        own = self._compressor.compress(parts, plan.layout, self._context)
        payload = torch.from_numpy(own.payload)
        if self._nonfinite == "skip":
            self._outgoing.append((own, parts))
        step.count_layers(own.tallies)
        step.keeps_residuals |= any(part.residual is not None for part in parts)
        compressed = perf_counter()
        step.compress_s += compressed - started
        RECORDER.add("compress", "compute", started, compressed, bucket.title)

        transport = transport_of(self._group, buffer)
        times = self._times
        times.began()
        gathering = self._exchange.start(payload, plan.number, self._group, transport)
        times.held(gathering.started)
        step.elements += buffer.numel() * self._workers
        step.messages += self._workers * (self._workers - 1)

        def finish(gate: Future[Exception | None]) -> Tensor:
            problem, received = gate.value(), perf_counter()
            with self._reaching():
                if problem is not None:
                    raise problem
                self._exchange.learn(plan.number, gathering.sizes)  # gets ready for the next messages
            incoming = self._read(parts, plan, gathering)
            self._fill(buffer, incoming, parts)
            for each in incoming:
                # Zeros would look like gradients that were cleared, and a further pass like a new step.
                if isinstance(each, NonFinite) and not (refused := parts[each.ordinal].gradient)[0]:
                    refused[0] = torch.finfo(buffer.dtype).tiny
            bucket.add_earlier(1.0)
            if buffer.is_cuda and transport.type == "cpu":
                torch.cuda.current_stream(
                    buffer.device
                ).synchronize()  # gloo's futures know nothing of streams
            with self._lock:
                step.wire_bytes += gathering.wire_bytes
                step.received_bytes += gathering.received_bytes
                for rank, each in enumerate(incoming):
                    if isinstance(each, NonFinite):
                        step.skip(parts[each.ordinal].name, rank)
                        continue
                    step.sent += sum(update.k for update in each)
                    step.paper_bits += sum(update.paper_bits for update in each)
            times.arrived(step, gathering.started, received, bucket.title)
            return buffer

        gate: Future[Exception | None] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        summed = gate.then(Once(finish))
        self._unsent.append(_Turn(gathering, gate))
        if bucket.ddp.is_last():
            self._send(last=True)
            self._finish_waiting()
        return summed

    def _plan_of(self, bucket: Bucket) -> _Plan:
        key = tuple(bucket.names)
        plan = self._plans.get(key)
        if plan is None:
            elements = [self._elements[name] for name in bucket.names]
            places = sorted(range(len(key)), key=lambda place: -self._ordinals[key[place]])
            names = [key[place] for place in places]
            layout = self._compressor.layout(names, [elements[place] for place in places])
            plan = self._plans[key] = _Plan(
                names, elements, places, layout, min(map(self._ordinals.__getitem__, key))
            )
        return plan

    def _send(self, *, last: bool = False) -> None:
        """Sends the messages of buckets whose lengths were told in earlier hooks: these have arrived by now.

        For the last bucket it does wait, because no hook follows.
        """
        unsent, self._unsent = self._unsent, []
        started = perf_counter()
        with _all_or_none([*self._waiting, *unsent]):
            for turn in unsent:
                turn.gathering.send()
                if not last:
                    turn.gathering.follow()
                if turn.gathering.arrived is None or turn.gathering.may_go_on:
                    self._waiting.append(turn)
                if turn.gathering.arrived is not None:
                    self.works += turn.gathering.works
                    turn.gathering.arrived.then(Once(turn.open))
        if unsent:
            self._times.held(started)

    def _finish_waiting(self) -> None:
        """Completes the exchanges that may need another round, in order. The last bucket's has begun."""
        waiting, self._waiting = self._waiting, []
        started = perf_counter()
        with _all_or_none(waiting):
            for turn in waiting:
                turn.gathering.complete()
                self.works += turn.gathering.works
        for turn in waiting:
            if turn.gathering.arrived is None or not turn.gathering.is_whole():
                turn.gate.set_result(None)  # decodes it, here and now
        self._times.held(started)

    def _read(self, parts: Sequence[Part], plan: _Plan, gathering: Gathering) -> list[Incoming]:
        """Every worker's updates, checked. If one is not valid, none is applied."""
        try:
            arrived = self._exchange.opened_each(gathering, plan.number)
            incoming = self._compressor.read_all([each.numpy() for each in arrived], plan.layout)
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
