"""A worker whose process group is made anew with another process: `python regrouped.py WORKER FOLDER`.

Worker 0 survives; worker 1 leaves with the first group, and worker 2 takes its place in the second.
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import LocalSteps, compress_gradients

GROUPS = {"first": [0, 1], "second": [0, 2]}
METHOD = "bgt(0.1)"


def train() -> None:
    """A step of the hook, and one of local steps."""
    torch.manual_seed(0)
    ddp, net = DistributedDataParallel(nn.Linear(8, 4)), nn.Linear(8, 4)
    state = compress_gradients(ddp, METHOD)
    local = LocalSteps(net, torch.optim.SGD(net.parameters(), lr=0.1), every=1, compressor=METHOD)
    ddp(torch.ones(2, 8)).sum().backward()
    local.step()
    assert state.totals.steps == local.totals.steps == 1


def main(worker: int, folder: Path) -> None:
    """Trains in every group that the worker is in."""
    for name, workers in GROUPS.items():
        if worker in workers:
            store = {"init_method": f"file://{folder}/{name}", "rank": workers.index(worker), "world_size": 2}
            dist.init_process_group("gloo", **store, timeout=timedelta(seconds=60))
            train()
            dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
