"""Posts between processes: payloads are sent and received while the worker computes."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from taugrad.compressors.exchange.lost_peers import reaching

from ..processes import receipts_first
from ..rounds import Payload, Received, Traffic
from .moves import Carrier, Course, Moves, Post, T, check, count


@dataclass
class _Pending:
    post: Post
    posted: float
    works: list[dist.Work]
    arriving: dict[int, Tensor]
    leaving: list[Tensor]
    """Kept until they have left."""


class ProcessCarrier(Carrier):
    """This process's worker, among those of the default process group."""

    def __init__(self, device: torch.device) -> None:
        """Joins the others.

        Args:
            device: where the transport takes its buffers from: the GPU for NCCL, the CPU for gloo.
        """
        self._rank, self._workers = dist.get_rank(), dist.get_world_size()
        self._device = device if dist.get_backend() == "nccl" else torch.device("cpu")

    def run(self, sides: Sequence[Moves[T]], courses: Sequence[Course], traffic: Traffic) -> list[T]:
        """See `Carrier.run`."""
        (side,), (course,) = sides, courses
        pending: dict[int, _Pending] = {}
        received: Received | None = None
        while True:
            try:
                move = side.send(received)
            except StopIteration as end:
                assert not pending, "what is posted is fetched"
                result: T = end.value
                return [result]
            if isinstance(move, Post):
                pending[move.channel], received = self._post(move), None
                count(traffic, move)
            else:
                received = self._fetch(pending.pop(move.channel), course)

    def _post(self, post: Post) -> _Pending:
        check(post, self._rank)
        operations: list[dist.P2POp] = []
        arriving: dict[int, Tensor] = {}
        leaving: list[Tensor] = []
        for other in range(self._workers):
            if other == self._rank:
                continue
            if post.lengths[self._rank, other]:
                leaving.append(torch.from_numpy(post.payloads[other]).to(self._device))
                operations.append(dist.P2POp(dist.isend, leaving[-1], other, None, post.channel))
            if size := int(post.lengths[other, self._rank]):
                arriving[other] = torch.empty(size, dtype=torch.uint8, device=self._device)
                operations.append(dist.P2POp(dist.irecv, arriving[other], other, None, post.channel))
        with reaching():
            works = dist.batch_isend_irecv(receipts_first(operations)) if operations else []
        return _Pending(post, perf_counter(), works, arriving, leaving)

    def _fetch(self, pending: _Pending, course: Course) -> Received:
        asked = perf_counter()
        with reaching():
            for work in pending.works:
                work.wait()
        if pending.works:
            course.fetched(pending.post.label, pending.posted, asked)
        return {other: _payload(tensor) for other, tensor in pending.arriving.items()}


def _payload(tensor: Tensor) -> Payload:
    payload: Payload = np.asarray(tensor.cpu().numpy())
    return payload
