"""Whole gradients, summed by the transport."""

from time import perf_counter

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.ledger import Step
from ..gloo_threads import Once
from ..method import Method
from .base import Bucket, Fail, Reducer


class AllReduce(Reducer):
    """What DDP does without a hook, counted."""

    def __init__(self, config: Method, group: dist.ProcessGroup, fail: Fail) -> None:
        super().__init__(config, group, fail)
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
            with self.reaching():
                summed = arrived.value()[0]
            times.arrived(step, started, perf_counter(), bucket.title, decoded=False)
            self._look_for_nonfinite(step, bucket, summed)
            return summed

        summed: Future[list[Tensor]] = work.get_future()
        return summed.then(Once(finish))
