"""Whole gradients, summed by the transport."""

from time import perf_counter

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.layout import PartTally
from ..bucket.ledger import Step
from ..gloo_threads import Once
from .base import Bucket, Protocol


class AllReduce(Protocol):
    """What DDP does without a hook, counted."""

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        """See `Protocol.synchronize`."""
        buffer = bucket.buffer
        if self._reduction == "mean":
            buffer.mul_(1.0 / self._workers)  # DDP without a hook multiplies too, before it adds
        elements = buffer.numel() * self._workers
        step.elements += elements
        step.sent += elements
        step.paper_bits += 32 * elements
        step.wire_bytes += buffer.element_size() * elements
        self._count_ring(step, buffer.element_size() * buffer.numel())
        for name, parameter in zip(bucket.names, bucket.ddp.parameters(), strict=True):
            numel = parameter.numel()
            step.layers.append(PartTally(name, numel, numel, 0.0, paper_bits=32 * numel))
        times, started = self._times, perf_counter()
        times.began()
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        assert work is not None
        self.works.append(work)

        def finish(arrived: Future[list[Tensor]]) -> Tensor:
            with self._reaching():
                summed = arrived.value()[0]
            times.arrived(step, started, perf_counter(), bucket.title, decoded=False)
            self._look_for_nonfinite(step, bucket, summed)
            return summed

        summed: Future[list[Tensor]] = work.get_future()
        return summed.then(Once(finish))
