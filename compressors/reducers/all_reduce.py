"""Gradients summed by torch's all-reduce: whole ones, and what a method brings an exchange for."""

from collections.abc import Mapping
from math import isfinite
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.bucket import Bucket
from ..bucket.ledger import Step
from ..errors import NonFiniteGradient
from ..exchange.addresses import backends_of
from ..gloo_threads import Once
from ..methods import Method
from ..ops.parts import PartTally
from ..spans import RECORDER
from .base import Fail, Reducer


class _CountedAllReduce(Reducer):
    """All-reduces of torch, counted by a formula and looked through for what is not finite."""

    def _count_all_reduce(self, step: Step, bucket: Bucket, sent: Mapping[str, int]) -> None:
        """Counts all-reduces of so many elements of each parameter."""
        elements = sum(sent.values())
        step.elements += bucket.buffer.numel()
        step.sent += elements
        step.paper_bits += 32 * elements
        step.add_all_reduce(
            bucket.buffer.element_size() * elements, dist.get_rank(self._group), self._workers
        )
        step.count_layers(
            PartTally(name, size, sent[name], 0.0, paper_bits=32 * sent[name])
            for name, size in zip(bucket.names, bucket.sizes, strict=True)
        )

    def _look_for_nonfinite(self, step: Step, bucket: Bucket, summed: Tensor) -> None:
        """Refuses or records a sum that is not finite. A sum that merely overflows is checked again."""
        if isfinite(summed.sum().item()) or bool(torch.isfinite(summed).all()):
            return
        broken = [not bool(torch.isfinite(gradient).all()) for gradient in bucket.shares]
        parameter = bucket.names[broken.index(True)]
        if self._nonfinite == "refuse":
            raise self._fail(NonFiniteGradient(parameter, -1))
        with self._lock:
            step.skip(parameter, -1)


class AllReduce(_CountedAllReduce):
    """Whole gradients, summed by the transport: what DDP does without a hook, counted."""

    def __init__(self, method: Method, group: dist.ProcessGroup, fail: Fail) -> None:
        super().__init__(method, group, fail)
        self.averages = self._reduction == "mean"

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        buffer = bucket.buffer
        # What was exchanged goes along, so that replicas stay equal whatever a script has made of it.
        bucket.add_earlier(1.0 if self._reduction == "mean" else 1.0 / self._workers)
        if self._reduction == "mean":
            buffer.mul_(1.0 / self._workers)  # DDP without a hook multiplies too, before it adds
        self._count_all_reduce(step, bucket, dict(zip(bucket.names, bucket.sizes, strict=True)))
        times, started = self._times, perf_counter()
        times.began()
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None
        self.works.append(work)

        def finish(arrived: Future[list[Tensor]]) -> Tensor:
            with self.noting_failures():
                summed = arrived.value()[0]
            times.arrived(step, started, perf_counter(), bucket.title)
            self._look_for_nonfinite(step, bucket, summed)
            return summed

        summed: Future[list[Tensor]] = work.get_future()
        return summed.then(Once(finish))


class BroughtExchange(_CountedAllReduce):
    """An exchange that a method brings (`Method.exchange`), counted, and with its own memory."""

    def __init__(
        self,
        method: Method,
        group: dist.ProcessGroup,
        parameters: Mapping[str, Tensor],
        known: Mapping[str, Tensor],
        fail: Fail,
    ) -> None:
        """Prepares to synchronize `parameters`; raises ValueError where the method cannot take one."""
        super().__init__(method, group, fail)
        self._exchange = method.exchange(group, parameters, known)

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        assert bucket.ddp is not None, "refused for others"
        times, started = self._times, perf_counter()
        times.began()
        calls_in_order = backends_of(self._group).get(bucket.buffer.device.type) == "nccl"
        mean, sent, under_way = self._exchange.start(
            bucket.ddp, bucket.names, bucket.sizes, calls_in_order=calls_in_order
        )
        times.held(under_way, perf_counter())
        step.compress_s += under_way - started
        RECORDER.add("compress", "compute", started, under_way, bucket.title)
        self._count_all_reduce(step, bucket, sent)

        def finish(arrived: Future[Tensor]) -> Tensor:
            with self.noting_failures():
                mean = arrived.value()
            times.arrived(step, under_way, perf_counter(), bucket.title)
            self._look_for_nonfinite(step, bucket, mean)
            if self._reduction == "sum":
                mean.mul_(self._workers)
            bucket.add_earlier(1.0)  # `mean` is the bucket's buffer
            return mean

        return mean.then(Once(finish))

    def state_dict(self) -> dict[str, Any]:
        return self._exchange.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._exchange.load_state_dict(state)
