"""One worker a process, connected by torch.distributed (gloo or NCCL)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from .links import Links
from .rounds import Agreed, Crew, Payload, Received, Sending, Side, Traffic


class ProcessCrew(Crew):
    """This process's worker, among those of the default process group."""

    def __init__(self, device: torch.device) -> None:
        """Joins the others.

        Args:
            device: where the transport takes its buffers from: the GPU for NCCL, the CPU for gloo.
        """
        self.workers = dist.get_world_size()
        self._rank = dist.get_rank()
        self.ranks = [self._rank]
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")

    def run(self, sides: Sequence[Side], traffic: Traffic) -> Agreed:
        """See `Crew.run`."""
        (side,) = sides
        while side.sending is not None:
            sending = side.sending
            heads = self._tell(sending.head())
            sizes = self._tell_sizes(sending) if heads[:, 5].any() else None
            traffic.count(heads, sizes)
            side.receive(self._exchange(sending, heads[:, 0], sizes))
        return side.agreed

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """See `Crew.broadcast`."""
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def links(self, traffic: Traffic) -> Links:
        """See `Crew.links`. Of its own sendings a process knows all."""
        own = torch.zeros((2, self.workers, self.workers), dtype=torch.int64)
        own[0, self._rank] = torch.from_numpy(traffic.link_messages[self._rank])
        own[1, self._rank] = torch.from_numpy(traffic.link_bytes[self._rank]) + traffic.told_bytes
        own[:, self._rank, self._rank] = 0
        summed = own.to(self._device)
        dist.all_reduce(summed)
        messages, nbytes = summed.cpu().numpy()
        return Links(messages, nbytes)

    def state_dict(self) -> dict[str, Any]:
        """See `Crew.state_dict`: nothing is remembered."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Crew.load_state_dict`."""

    def _tell(self, numbers: list[int]) -> NDArray[np.int64]:
        """Everybody's numbers, int64 [workers, numbers]."""
        mine = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        everybody = torch.empty((self.workers, len(numbers)), dtype=torch.int64, device=self._device)
        dist.all_gather(list(everybody.unbind()), mine)
        gathered: NDArray[np.int64] = everybody.cpu().numpy()
        return gathered

    def _tell_sizes(self, sending: Sending) -> NDArray[np.int64]:
        """What this worker sends to single others, and what they send to it; int64 [workers, workers]."""
        numbers = [sending.to[rank].size if rank in sending.to else 0 for rank in range(self.workers)]
        mine = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        arriving = torch.empty_like(mine)
        dist.all_to_all_single(arriving, mine)
        sizes = np.zeros((self.workers, self.workers), np.int64)
        sizes[:, self._rank] = arriving.cpu().numpy()
        sizes[self._rank] = numbers
        return sizes

    def _exchange(
        self, sending: Sending, to_all: NDArray[np.int64], sizes: NDArray[np.int64] | None
    ) -> Received:
        """Sends and receives at the same time, exactly as many bytes as there are."""
        operations: list[dist.P2POp] = []
        arriving: dict[int, Tensor] = {}
        mine = None if sending.to_all is None else self._tensor(sending.to_all)
        for other in range(self.workers):
            if other == self._rank:
                continue
            outgoing = self._tensor(sending.to[other]) if other in sending.to else mine
            if outgoing is not None and outgoing.numel():
                operations.append(dist.P2POp(dist.isend, outgoing, other))
            size = int(to_all[other])
            if sizes is not None and sizes[other, self._rank]:
                size = int(sizes[other, self._rank])
            if size >= 0:
                arriving[other] = torch.empty(size, dtype=torch.uint8, device=self._device)
            if size > 0:
                operations.append(dist.P2POp(dist.irecv, arriving[other], other))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        received = {other: _payload(tensor) for other, tensor in arriving.items()}
        if sending.to_all is not None:
            received[self._rank] = sending.to_all
        return dict(sorted(received.items()))

    def _tensor(self, payload: Payload) -> Tensor:
        return torch.from_numpy(payload).to(self._device)


def _payload(tensor: Tensor) -> Payload:
    payload: Payload = tensor.cpu().numpy()
    return payload
