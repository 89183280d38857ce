"""Runs rounds with one worker in each process."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from weakref import finalize

import torch
import torch.distributed as dist
from torch import Tensor

from taugrad.compressors.exchange.carrier import Carrier
from taugrad.compressors.exchange.lost_peers import reaching
from taugrad.compressors.spans import RECORDER

from .links import Links
from .rounds import Crew, Traffic


class ProcessCrew(Crew):
    """This process's worker, among those of the default process group."""

    def __init__(self, device: torch.device, carrier: Carrier) -> None:
        """Joins the others.

        Args:
            device: where the process group takes its buffers from: the GPU for NCCL, the CPU for gloo.
            carrier: of this worker; it is closed with this object.
        """
        super().__init__([carrier])
        finalize(self, carrier.close)
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")

    @contextmanager
    def _waiting(self, about: str) -> Iterator[None]:
        """See `Crew._waiting`."""
        began = perf_counter()
        with reaching():
            yield
        ended = perf_counter()
        self.waited_s += ended - began
        RECORDER.add("exchange", "wire", began, ended, about)
        RECORDER.add("wait", "compute", began, ended)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """See `Crew.broadcast`."""
        if not tensors:
            return
        with self._waiting("buffers"):
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def links(self, traffic: Traffic) -> Links:
        """See `Crew.links`. Of its own sendings a process knows all."""
        (rank,) = self.ranks
        own = torch.zeros((2, self.workers, self.workers), dtype=torch.int64)
        own[0, rank] = torch.from_numpy(traffic.link_messages[rank])
        own[1, rank] = torch.from_numpy((traffic.link_bytes + traffic.link_told)[rank])
        own[:, rank, rank] = 0
        summed = own.to(self._device)
        dist.all_reduce(summed)
        messages, nbytes = summed.cpu().numpy()
        return Links(messages, nbytes)
