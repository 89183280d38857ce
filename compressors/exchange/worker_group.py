"""What a worker does together with all others besides exchanges: broadcasts and gathers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from weakref import finalize

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from ..errors import reaching
from ..spans import RECORDER
from .addresses import transport_of
from .carrier import Carrier
from .lockstep import Coroutine
from .tensors import broadcast, copy_bytes, to_bytes

_TAG = "group"


class WorkerGroup:
    """One worker among all: its carrier, and what they do together besides exchanges.

    Attributes:
        carrier: this worker's.
        rank: this worker's.
        workers: how many there are.
    """

    def __init__(
        self,
        carrier: Carrier,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - immutable
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Takes ownership of a worker's carrier; of a process group, by default of all processes."""
        self.carrier, self.rank, self.workers = carrier, carrier.rank, carrier.workers
        self._group = group
        self._device = transport_of(group, device) if carrier.waits else device
        finalize(self, carrier.close)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copies worker 0's tensors to all workers, in place."""
        if not tensors:
            return
        if self.carrier.waits:
            with _waiting("buffers"):
                broadcast(tensors, self._group, self._device)
        elif self.rank == 0:
            data = to_bytes(tensors)
            for other in self.carrier.others:
                self.carrier.send(other, _TAG, data)
        else:  # worker 0's turn was before
            copy_bytes(self.carrier.receive(0, _TAG).result(timeout=0), tensors)

    def gather(self, row: NDArray[np.float64]) -> Coroutine[NDArray[np.float64]]:
        """Gathers a row [...] from each worker: [workers, ...]; raises PeerLost."""
        if self.carrier.waits:
            return gather_rows(row, self._device, self._group)
        if self.rank:
            self.carrier.send(0, _TAG, np.ascontiguousarray(row).reshape(-1).view(np.uint8))
        rows: NDArray[np.float64] = yield partial(self._gathered, row)
        return rows

    def _gathered(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        """Worker 0's part, which has the result for all simulated workers."""
        received = [self.carrier.receive(other, _TAG).result(timeout=0) for other in self.carrier.others]
        return np.stack([row, *(data.view(np.float64).reshape(row.shape) for data in received)])


@contextmanager
def _waiting(about: str) -> Iterator[None]:
    """Records what goes on inside as waiting for the others."""
    began = perf_counter()
    with reaching():
        yield
    ended = perf_counter()
    RECORDER.add("exchange", "wire", began, ended, about)
    RECORDER.add("wait", "compute", began, ended)


def gather_rows(
    row: NDArray[np.float64], device: torch.device, group: dist.ProcessGroup | None = None
) -> NDArray[np.float64]:
    """The rows [...] of all processes of a group, by default all: [processes, ...]; all call it together.

    Rows are exact for integers up to 2^53. Raises PeerLost.
    """
    local = torch.from_numpy(np.ascontiguousarray(row)).to(transport_of(group, device))
    rows = [torch.empty_like(local) for _ in range(dist.get_world_size(group))]
    with _waiting("notes"):
        dist.all_gather(rows, local, group=group)
    return np.stack([row.cpu().numpy() for row in rows])
