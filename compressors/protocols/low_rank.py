"""torch's PowerSGD hook, its bytes counted."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from ..bucket.layout import PartTally
from ..bucket.ledger import Step
from ..gloo_threads import Once
from ..method import PowerSGD
from ..peers.powersgd import PowerSGD as TorchPowerSGD
from ..spans import RECORDER
from .base import Bucket, Fail, Reducer


class LowRank(Reducer):
    """Factors of gradient matrices, summed by the transport."""

    def __init__(
        self,
        config: PowerSGD,
        group: dist.ProcessGroup,
        parameters: Mapping[str, Tensor],
        known: Mapping[str, Tensor],
        fail: Fail,
    ) -> None:
        """Prepares; for arguments see `WorkerState`, for errors `powersgd.PowerSGD`."""
        super().__init__(config, group, fail)
        self._elements = {name: parameter.numel() for name, parameter in parameters.items()}
        self._powersgd = TorchPowerSGD(group, parameters, known, config)

    def synchronize(self, bucket: Bucket, step: Step) -> Future[Tensor]:
        buffer = bucket.buffer
        assert bucket.ddp is not None, "refused for others"
        times, started = self._times, perf_counter()
        times.began()
        averaged = self._powersgd.synchronize(bucket.ddp)
        handed_over, under_way = self._powersgd.handed_over, self._powersgd.under_way
        times.held(under_way)
        step.compress_s += under_way - started
        RECORDER.add("compress", "compute", started, under_way, bucket.title)
        step.elements += buffer.numel() * self._workers
        step.sent += handed_over * self._workers
        step.paper_bits += 32 * handed_over * self._workers
        step.wire_bytes += buffer.element_size() * handed_over * self._workers
        self._count_ring(step, buffer.element_size() * handed_over)
        step.count_layers(
            PartTally(name, self._elements[name], sent, 0.0, paper_bits=32 * sent)
            for name, sent in self._powersgd.layers.items()
        )

        def finish(arrived: Future[Tensor]) -> Tensor:
            with self._reaching():
                mean = arrived.value()
            times.arrived(step, under_way, perf_counter(), bucket.title, decoded=False)
            self._look_for_nonfinite(step, bucket, mean)
            if self._reduction == "sum":
                mean.mul_(self._workers)
            bucket.add_earlier(1.0)  # `mean` is the bucket's buffer
            return mean

        return averaged.then(Once(finish))

    def state_dict(self) -> dict[str, Any] | None:
        return self._powersgd.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            raise ValueError("of another method")
        self._powersgd.load_state_dict(state)
