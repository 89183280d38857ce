"""Messages of fixed size, exchanged by torch's collectives as the pattern sharded has them, on the device.

The host waits once in a backward pass: when all buckets are on their way, workers agree whether everything
was finite.
"""

from collections.abc import Iterator, Set
from contextlib import contextmanager
from functools import cached_property
from time import perf_counter

import torch
from torch import Tensor
from torch.futures import Future

from ..bucket.bucket import Bucket
from ..bucket.ledger import Step
from ..errors import NonFiniteGradient
from ..exchange.collectives import Collectives, first_refused
from ..exchange.patterns.base import RefusedUpdate
from ..ops import ops_for
from ..ops.interface import Ops, Readback
from .compressed import CompressedReducer, UnderWay


class CollectiveReducer(CompressedReducer):
    """Compression with residuals, in the order of a stream; under NCCL, the host does not wait for it.

    Whether a gradient was not finite is known when workers agree on it, at the end of a backward pass.
    """

    _unchecked: list[UnderWay]
    """In this backward pass, since workers agreed that everything was finite."""
    _stream: torch.cuda.Stream | None = None

    @cached_property
    def _collectives(self) -> Collectives:
        return Collectives(self._group, self._ops)

    @property
    def _ops(self) -> Ops:
        return ops_for(next(iter(self._parameters.values())).device, self._options.threads)

    def open(self) -> None:
        if self._carrier is None:
            self._carrier, self._readback = self._collectives, Readback(self._ops)

    def begin(self, iteration: int) -> None:
        super().begin(iteration)
        self._unchecked, self._collectives.works = [], self.works

    def end_step(self, *, skipped: bool, stepped: Set[str]) -> None:
        # Of a skipped step there are no sums: what an optimizer has stepped by was zeros.
        super().end_step(skipped=skipped, stepped=set())

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        buffer = bucket.buffer
        summed: Future[Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        with self._on_stream(buffer.device):
            under_way = self._send(bucket, step, lambda go_on: go_on())
            with self.noting_failures():
                under_way.fill()
            bucket.add_earlier(1.0)
            summed.set_result(buffer)
        self._unchecked.append(under_way)
        if bucket.is_awaited:
            self._check(step)
        return summed

    @contextmanager
    def _on_stream(self, device: torch.device) -> Iterator[None]:
        """On a GPU, the exchanges' stream, which waits for what the current one has been given."""
        if device.type != "cuda":
            yield
            return
        self._stream = self._stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            yield

    def on_hooks_done(self, step: Step) -> None:
        if self._unchecked:
            self._check(step)
        super().on_hooks_done(step)

    def _check(self, step: Step) -> None:
        """Waits for the exchanges by collectives; all workers refuse or skip what one found not finite."""
        buckets, self._unchecked, began = self._unchecked, [], perf_counter()
        with self._on_stream(buckets[0].bucket.buffer.device), self.noting_failures():
            assert self._readback is not None
            self._readback.fetch()
            refused: dict[bool, list[str]] = {False: [], True: []}
            for under_way in buckets:
                for is_sum, ordinals in under_way.exchange.record.refused:
                    refused[is_sum] += [under_way.names[ordinal] for ordinal in ordinals()]
            names = list(self._parameters)
            first = first_refused(
                [self._collectives], self._rank, self._workers, names, refused[False], refused[True]
            )
        received = perf_counter()
        if buckets[-1].bucket.is_awaited:
            self._times.held(began, received)
        if first is not None and self._nonfinite == "refuse":
            raise self._fail(NonFiniteGradient(*first))
        for under_way in buckets:
            names, refusals = under_way.names, list[RefusedUpdate]()
            if first is not None:
                name, rank = first
                under_way.bucket.buffer.zero_()
                if name in names:
                    refusals = [RefusedUpdate(rank, names.index(name))]
                under_way.mark(refusals)
                under_way.bucket.add_earlier(1.0)
            step.count_layers(under_way.exchange.record.layers)
            self._count(under_way, step, refusals, received)
