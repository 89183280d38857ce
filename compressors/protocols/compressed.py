"""Messages of compressed gradients, exchanged bucket by bucket by a pattern (`exchange/patterns`).

The residual of each parameter in a bucket is added to its gradient. A rule decides what to send and keeps the
rest. The pattern's messages are under way while the backward pass goes on. Every worker adds up the same
messages in the same order, so that replicas stay bit-identical.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue
from time import perf_counter
from typing import TypeVar
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.feedback import Feedback
from ..bucket.layout import ParameterSlice, PartTally, by_parameter
from ..bucket.ledger import Step, Traffic
from ..errors import CorruptMessage, NonFiniteGradient
from ..exchange.addresses import places_of
from ..exchange.carrier import Carrier
from ..exchange.keys import require_long_enough
from ..exchange.mesh import connected, most_bytes_of
from ..exchange.patterns import PatternName, pattern_for, returning
from ..exchange.patterns.base import Pattern, RefusedUpdate, Setting, Shard
from ..exchange.rounds import ExchangeRecord, Payloads, PendingRounds
from ..exchange.sites import Sites
from ..method.methods import CompressedMethod
from ..spans import RECORDER
from ..wire.message import VERSION
from .base import Bucket, Fail, Reducer

_Result = TypeVar("_Result")

_SHORTEST_SLICE = 1024
"""Elements: parameters that would be cut into shorter slices are reduced by one worker each."""


@dataclass(frozen=True)
class _Plan:
    """What is the same for a bucket in every step.

    Parameters are in the model's reverse order. DDP orders them differently in a process's first backward
    pass than in later ones, and what is sent, and its bytes, must not depend on that.
    """

    names: list[str]
    places: list[int]
    """For each name, its index among the bucket's parameters."""
    pattern: Pattern
    number: int
    """A number that is unique within a step and the same on every worker: that of its first parameter."""

    @property
    def in_order(self) -> bool:
        """Whether a sum by the pattern lies as the bucket does."""
        return self.places == sorted(self.places) and len(self.pattern.shards) == 1


class CompressedReducer(Reducer):
    """Compression with residuals; see the module's text.

    Attributes:
        sites: of the workers, for hierarchical; None until the first exchange if hosts decide.
    """

    def __init__(
        self,
        config: CompressedMethod,
        group: dist.ProcessGroup,
        parameters: Mapping[str, Tensor],
        fail: Fail,
        *,
        feedback: Feedback,
        pattern: PatternName,
        sites: Sequence[Sequence[int]] | None,
        key: bytes | None,
        threads: int,
        hold_back_zeros: bool,
        whole: Mapping[str, int] | None = None,
    ) -> None:
        """Prepares to synchronize these parameters; for arguments and errors see `WorkerState`."""
        super().__init__(config, group, fail)
        require_long_enough(key)
        self._config, self._pattern, self._parameters = config, pattern, parameters
        self._feedback, self._whole = feedback, whole
        self._threads, self._hold_back_zeros = threads, hold_back_zeros
        self.sites = None if sites is None else Sites.of(sites, self._workers)
        self._key = None if self._workers == 1 else key  # a worker that is alone sends nothing
        self._rank = dist.get_rank(group)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(parameters)}
        self._back_method = returning(config)
        shards = {"sharded": self._workers, "ring": self._workers}.get(pattern, 1)
        self._slices = _cut_each({name: parameter.numel() for name, parameter in parameters.items()}, shards)
        self.shards = self._slices
        if pattern in ("sharded", "parameter_server") and self._rank < shards:
            self.back = Feedback(self._back_method)
            self.back.slices = self._slices[self._rank]
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._used: list[Pattern] = []
        """By which patterns a step that may be skipped was exchanged."""
        self._carrier: Carrier | None = None
        self._decoder = ThreadPoolExecutor(1, "taugrad-decode")
        """Goes on with exchanges, and adds up what has arrived, beside the backward pass."""

    @property
    def settings(self) -> dict[str, str]:
        return {
            "pattern": self._pattern,
            "messages": "not authenticated" if self._key is None else "authenticated",
            **({"sites": str(self.sites or "by host")} if self._pattern == "hierarchical" else {}),
            "message version": str(VERSION),
        }

    def open(self) -> None:
        if self._carrier is not None:
            return
        if self._pattern == "hierarchical":
            self.sites = self.sites or Sites.by_place(places_of(self._group))
        most_bytes = most_bytes_of(sum(parameter.numel() for parameter in self._parameters.values()))
        self._carrier = connected(self._group, most_bytes=most_bytes, key=self._key)
        self._close = finalize(self, self._carrier.close)

    def close(self) -> None:
        if self._carrier is not None:
            self._close()

    def begin(self, iteration: int) -> None:
        super().begin(iteration)
        self._iteration = iteration

    def end_step(self, *, skipped: bool, stepped: Set[str]) -> None:
        for pattern in reversed(self._used):
            if skipped:
                pattern.put_back(stepped)
            else:
                pattern.commit()
        self._used = []

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        assert self._carrier is not None, "workers are connected before their first exchange"
        plan, buffer, traffic = self._plan_of(bucket), bucket.buffer, Traffic(self._workers)
        pattern, shares, record = plan.pattern, bucket.shares, ExchangeRecord()
        gradients = [shares[place] for place in plan.places]
        # A scaler drops the gradients of a step that overflows: many of them are far off.
        pattern.copies = bucket.scale is not None
        if self._nonfinite == "skip":
            self._used.append(pattern)
        here: SimpleQueue[Callable[[], None]] = SimpleQueue()
        pending = PendingRounds(
            pattern.rounds(gradients, self._iteration, record),
            record,
            self._carrier,
            f"bucket {bucket.series + plan.number}",
            traffic,
            here.put if bucket.is_awaited else self._decoder.submit,
        )
        started = perf_counter()
        pending.begin()
        compressed = perf_counter()
        step.compress_s += compressed - started
        RECORDER.add("compress", "compute", started, compressed, bucket.title)
        if pattern.compresses_at_once:
            step.count_layers(_tallies(pattern, record))
        times = self._times
        times.began()

        def finish(_: Future[None]) -> Tensor:
            received = perf_counter()
            with self.reaching():
                payloads = self._valid(pending.payloads.result)
            refusals = self._valid(lambda: pattern.refusals(payloads))
            if refusals and self._nonfinite == "refuse":
                raise self._fail(_nonfinite(plan, refusals[0]))
            self._fill(plan, gradients, buffer, payloads)
            if bucket.scale is not None:
                buffer.mul_(bucket.scale)
            for refusal in refusals:
                gradient = gradients[refusal.ordinal]
                if bucket.scale is not None:
                    gradient[0] = torch.inf  # for every worker's scaler to find
                elif not gradient[0]:
                    # Zeros would look like gradients that were cleared, and a further pass like a new step.
                    gradient[0] = torch.finfo(buffer.dtype).tiny
            bucket.add_earlier(1.0)
            if buffer.is_cuda:  # the CPU copy is not stream-ordered
                torch.cuda.current_stream(buffer.device).synchronize()
            with self._lock:
                if not pattern.compresses_at_once:
                    step.count_layers(_tallies(pattern, record))
                self.traffic.add(traffic)
                traffic.sums.elements = buffer.numel()
                traffic.sums.sent = sum(tally.sent for tally in record.tallies)
                traffic.sums.paper_bits = record.paper_bits
                step.add(traffic.sums)
                step.keeps_residuals |= pattern.keeps_residuals
                for refusal in refusals:
                    problem = _nonfinite(plan, refusal)
                    step.skip(problem.parameter, problem.rank)
            times.arrived(step, compressed, received, bucket.title)
            return buffer

        exchanged: Future[None] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        summed = exchanged.then(finish)
        pending.payloads.add_done_callback(lambda _: exchanged.set_result(None))
        while bucket.is_awaited and not pending.payloads.done():
            started = perf_counter()
            go_on = here.get()
            times.held(started)
            go_on()
        return summed

    def _plan_of(self, bucket: Bucket) -> _Plan:
        key = tuple(bucket.names)
        plan = self._plans.get(key)
        if plan is None:
            places = sorted(range(len(key)), key=lambda place: -self._ordinals[key[place]])
            names = [key[place] for place in places]
            setting = Setting(
                names,
                [_flat_like(self._parameters[name]) for name in names],
                rank=self._rank,
                workers=self._workers,
                threads=self._threads,
                hold_back_zeros=self._hold_back_zeros,
                whole=() if self._whole is None else [self._whole[name] for name in names],
                feedback=self._feedback,
                back=self.back,
            )
            method, back, shards = self._config, self._back_method, _shards(self._slices, names)
            pattern = pattern_for(self._pattern, method, back, setting, self.sites, lambda *_: shards)
            number = min(self._ordinals[name] for name in key)
            plan = self._plans[key] = _Plan(names, places, pattern, number)
        return plan

    def _valid(self, read: Callable[[], _Result]) -> _Result:
        """What is read of messages; notes as the failure that one is not valid."""
        try:
            return read()
        except CorruptMessage as reason:
            raise self._fail(reason) from None

    def _fill(self, plan: _Plan, gradients: Sequence[Tensor], buffer: Tensor, payloads: Payloads) -> None:
        """Fills the buffer with the sum of all workers' updates, or with their mean."""
        pattern, direct = plan.pattern, plan.in_order and buffer.dtype == torch.float32
        total = self._valid(lambda: pattern.assemble(payloads, buffer if direct else None))
        if not direct:
            for shard in pattern.shards:
                values = shard.split(total[shard.start : shard.stop])
                for gradient, reduced in zip(shard.of(gradients), values, strict=True):
                    gradient.copy_(reduced)


def _tallies(pattern: Pattern, record: ExchangeRecord) -> list[PartTally]:
    return record.tallies if len(pattern.shards) == 1 else by_parameter(record.tallies)


def _nonfinite(plan: _Plan, refusal: RefusedUpdate) -> NonFiniteGradient:
    return NonFiniteGradient(plan.names[refusal.ordinal], refusal.rank)


def _shards(slices: Sequence[Mapping[str, ParameterSlice]], names: Sequence[str]) -> list[Shard]:
    """The shards of a bucket of these parameters, each of which is cut alike in whatever bucket it is."""
    shards, start = [], 0
    for of_shard in slices:
        here = tuple(
            of_shard[name]._replace(ordinal=ordinal) for ordinal, name in enumerate(names) if name in of_shard
        )
        stop = start + sum(part.stop - part.start for part in here)
        shards.append(Shard(start, stop, here))
        start = stop
    return shards


def _flat_like(parameter: Tensor) -> Tensor:
    """[numel], of the same type and device; it takes no memory."""
    return parameter.new_empty(()).expand(parameter.numel())


def _cut_each(sizes: Mapping[str, int], shards: int) -> list[dict[str, ParameterSlice]]:
    """Cuts each parameter into as many slices as there are shards, or gives it to one of these whole."""
    slices: list[dict[str, ParameterSlice]] = [{} for _ in range(shards)]
    for ordinal, (name, size) in enumerate(sizes.items()):
        bounds = [size * number // shards for number in range(shards + 1)]
        if size < shards * _SHORTEST_SLICE:
            bounds = [0 if number <= ordinal % shards else size for number in range(shards + 1)]
        for shard, (start, stop) in zip(slices, pairwise(bounds), strict=True):
            if start < stop:
                shard[name] = ParameterSlice(ordinal, start, stop, size)
    return slices
