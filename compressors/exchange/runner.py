"""The workers of this process: their carriers, and what all workers do together besides exchanges.

Simulated workers of one process come to the same bytes and results as real ones, one a process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
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
from .carrier import Carrier, in_memory
from .rounds import Payloads, PendingRounds
from .tensors import broadcast


class Runner:
    """The carriers of this process's workers, and what all workers do together besides exchanges.

    Attributes:
        carriers: of the workers in this process, by rank.
        ranks: theirs, ascending.
        workers: how many there are everywhere.
        waits: whether there are others to wait for; simulated workers never do.
    """

    def __init__(
        self,
        carriers: Sequence[Carrier],
        device: torch.device = torch.device("cpu"),  # noqa: B008 - immutable
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Takes charge of all workers, or of one among those of a process group, by default all."""
        self.carriers = carriers
        self.ranks: Sequence[int] = [carrier.rank for carrier in carriers]
        self.workers = carriers[0].workers
        self.waits = len(carriers) < self.workers
        self._group = group
        self._device = transport_of(group, device) if self.waits else device

    @classmethod
    def simulated(cls, workers: int) -> "Runner":
        """Creates a runner for all workers, over a carrier in memory (Anoosheh, section 2.2)."""
        return cls(in_memory(workers))

    @classmethod
    def of_process(
        cls, carrier: Carrier, device: torch.device, group: dist.ProcessGroup | None = None
    ) -> "Runner":
        """Creates a runner for this process's worker; takes ownership of the carrier."""
        runner = cls([carrier], device, group)
        finalize(runner, carrier.close)
        return runner

    def finish(
        self, pending: Sequence[PendingRounds], calls: "SimpleQueue[Callable[[], None]]"
    ) -> tuple[Payloads, float]:
        """Runs exchanges of the workers here to their ends, in this thread.

        Args:
            pending: begun, one a rank here.
            calls: their `schedule` puts calls there.

        Returns:
            What they return, and the seconds in which this thread waited for other processes.

        Raises:
            PeerLost: another worker is gone, or has been silent for too long.
            CorruptMessage: what arrived is no message of a round.
        """
        waited_s, left = 0.0, list(pending)
        while left := [exchange for exchange in left if not exchange.payloads.done()]:
            began = perf_counter()
            call = calls.get(block=self.waits)
            if self.waits:
                ended = perf_counter()
                waited_s += ended - began
                RECORDER.add("exchange", "wire", began, ended, "round")
                RECORDER.add("wait", "compute", began, ended)
            call()
            for exchange in left:
                if exchange.payloads.done():
                    exchange.payloads.result()  # the others may wait for one that failed
        return pending[0].payloads.result(), waited_s

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Worker 0's tensors to all processes, in place; simulated workers share them."""
        if tensors and self.waits:
            with _waiting("buffers"):
                broadcast(tensors, self._group, self._device)

    def gather(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows of all workers: [workers, ...] from [workers here, ...]; all must call this together."""
        return gather_rows(rows[0], self._device, self._group) if self.waits else rows


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
