"""In which order a round's messages are started."""

import torch
import torch.distributed as dist

from taugrad.platform.synchronization.processes import receipts_first


class Operation:
    """As torch.distributed.P2POp, which needs a process group."""

    def __init__(self, op: object, peer: int) -> None:
        self.op, self.peer, self.tensor = op, peer, torch.empty(0)


def test_a_worker_says_that_it_is_ready_before_it_sends() -> None:
    given = [Operation(op, peer) for peer in (1, 2) for op in (dist.isend, dist.irecv)]
    found = receipts_first(given)  # type: ignore[arg-type]
    assert [(each.op, each.peer) for each in found] == [
        (dist.irecv, 1),
        (dist.irecv, 2),
        (dist.isend, 1),
        (dist.isend, 2),
    ]
