"""One worker of test_process_groups.py: `python process_group_worker.py FUNCTION RANK ARGUMENT...`."""

import sys
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
import zmq
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import LocalSteps, compress_gradients
from taugrad.compressors.exchange.mesh import Mesh

TIMEOUT = timedelta(seconds=60)
GROUPS = {"first": [0, 1], "second": [0, 2]}
METHOD = "bgt(0.1)"


def connect(rank: int, address: str, file: str) -> None:
    """Connects to the other worker by a store at an address; writes where it listened, and what arrived."""
    store = {"init_method": f"tcp://{address}:29611", "rank": rank, "world_size": 2}
    dist.init_process_group("gloo", **store, timeout=TIMEOUT)
    mesh = Mesh(most_bytes=1 << 20)
    mesh.send(1 - rank, "rank", np.array([rank], np.uint8))
    arrived = mesh.receive(1 - rank, "rank").result(60).tolist()
    endpoint = mesh._router.get(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    with open(file, "w") as out:
        out.write(f"{endpoint.decode().rpartition(':')[0]} {arrived}")
    mesh.close()
    dist.destroy_process_group()


def regroup(worker: int, folder: str) -> None:
    """A step of the hook and one of local steps in every group that the worker is in.

    Worker 0 survives; worker 1 leaves with the first group, and worker 2 takes its place in the second.
    """
    for name, workers in GROUPS.items():
        if worker not in workers:
            continue
        store = {"init_method": f"file://{folder}/{name}", "rank": workers.index(worker), "world_size": 2}
        dist.init_process_group("gloo", **store, timeout=TIMEOUT)
        torch.manual_seed(0)
        ddp, net = DistributedDataParallel(nn.Linear(8, 4)), nn.Linear(8, 4)
        state = compress_gradients(ddp, METHOD)
        local = LocalSteps(net, torch.optim.SGD(net.parameters(), lr=0.1), every=1, method=METHOD)
        ddp(torch.ones(2, 8)).sum().backward()
        local.step()
        assert state.totals.steps == local.totals.steps == 1
        del ddp, state, local
        dist.destroy_process_group()


if __name__ == "__main__":
    {"connect": connect, "regroup": regroup}[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
