"""One worker a process, connected by torch.distributed (gloo or NCCL)."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from .links import Links
from .rounds import (
    HEAD,
    Agreed,
    Crew,
    Head,
    Heads,
    Known,
    Passed,
    Passing,
    Payload,
    Received,
    Sending,
    Side,
    Traffic,
)


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
        while side.move is not None:
            move = side.move
            if isinstance(move, Passing):
                side.receive(self._pass_on(move, traffic))
            elif isinstance(move, Known):
                traffic.count_known(move)
                side.receive({})
            else:
                heads = self._tell(move.head())
                sizes = self._tell_sizes(move) if heads["single_messages"].any() else None
                traffic.count(heads, sizes)
                side.receive(self._exchange(move, heads["to_all"], sizes))
        return side.agreed

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """See `Crew.broadcast`."""
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def links(self, traffic: Traffic) -> Links:
        """See `Crew.links`. Of its own sendings a process knows all."""
        own = torch.zeros((2, self.workers, self.workers), dtype=torch.int64)
        own[0, self._rank] = torch.from_numpy(traffic.link_messages[self._rank])
        own[1, self._rank] = torch.from_numpy((traffic.link_bytes + traffic.link_told)[self._rank])
        own[:, self._rank, self._rank] = 0
        summed = own.to(self._device)
        dist.all_reduce(summed)
        messages, nbytes = summed.cpu().numpy()
        return Links(messages, nbytes)

    def _pass_on(self, passing: Passing, traffic: Traffic) -> Passed:
        """Sends to one worker and receives from one at the same time: first numbers, then payloads."""
        numbers = [passing.payload.size, *passing.note]
        told = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        heard = torch.empty_like(told)
        _wait_for(
            [dist.P2POp(dist.isend, told, passing.receiver), dist.P2POp(dist.irecv, heard, passing.sender)]
        )
        size, *note = heard.tolist()
        arriving = torch.empty(size, dtype=torch.uint8, device=self._device)
        operations = []
        if passing.payload.size:
            operations.append(dist.P2POp(dist.isend, self._tensor(passing.payload), passing.receiver))
        if size:
            operations.append(dist.P2POp(dist.irecv, arriving, passing.sender))
        _wait_for(operations)
        traffic.count_passed(self._rank, passing.receiver, passing.payload.size, passing.told_bytes)
        traffic.count_passed(passing.sender, self._rank, size, passing.told_bytes)
        return Passed(passing.sender, _payload(arriving), note)

    def _tell(self, head: Head) -> Heads:
        """Everybody's heads."""
        mine = torch.tensor(head, dtype=torch.int64, device=self._device)
        everybody = torch.empty((self.workers, len(head)), dtype=torch.int64, device=self._device)
        dist.all_gather(list(everybody.unbind()), mine)
        return everybody.cpu().numpy().view(HEAD)[:, 0]

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
        _wait_for(operations)
        received = {other: _payload(tensor) for other, tensor in arriving.items()}
        if sending.to_all is not None:
            received[self._rank] = sending.to_all
        return dict(sorted(received.items()))

    def _tensor(self, payload: Payload) -> Tensor:
        return torch.from_numpy(payload).to(self._device)


def _wait_for(operations: list[dist.P2POp]) -> None:
    """Starts all of them and waits for their end."""
    if operations:
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def _payload(tensor: Tensor) -> Payload:
    payload: Payload = tensor.cpu().numpy()
    return payload
