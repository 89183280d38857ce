"""One worker of plain DDP scripts, each of which trains until a worker is lost.

python lost_peer_process.py RANK FOLDER TIMEOUT

FOLDER/cases.json has the scripts: name, method, form of exchange, and how many of the workers take part. How
each ended stands in FOLDER/NAME-RANK.json, by the clock that all processes share.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from time import monotonic

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taugrad.compressors import CompressionState, compressed_allgather

READY = 5
"""Steps after which a worker may be lost: buckets have been formed anew, receivers have made their rooms."""


def train(ready: Path, line: str, exchange: str) -> dict[str, object]:
    """Trains until that fails; how it did."""
    torch.manual_seed(0)
    rank, workers = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    sites = [[0, 1], list(range(2, workers))] if exchange == "hierarchical" else None
    state = CompressionState(ddp, line, exchange=exchange, sites=sites)  # type: ignore[arg-type]
    ddp.register_comm_hook(state, compressed_allgather)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    generator, done = torch.Generator().manual_seed(rank), 0
    while True:
        try:
            optimizer.zero_grad()
            images = torch.randn((8, 64), generator=generator)
            nn.functional.cross_entropy(ddp(images), images.argmax(1) % 10).backward()
            optimizer.step()
        except RuntimeError as error:
            failure = state.failure
            return {
                "at": monotonic(),
                "error": str(error),
                "failure": type(failure).__name__,
                "sentence": str(failure),
                "worker": getattr(failure, "worker", None),
            }
        done += 1
        if done == READY:
            ready.touch()


def main(rank: int, folder: Path, timeout_s: float) -> None:
    torch.set_num_threads(1)
    for name, line, exchange, workers in json.loads((folder / "cases.json").read_text()):
        if rank >= workers:
            return
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/{name}-rendezvous",
            rank=rank,
            world_size=workers,
            timeout=timedelta(seconds=timeout_s),
        )
        told = train(folder / f"{name}-{rank}.ready", line, exchange)
        unfinished = folder / f"{name}-{rank}.part"
        unfinished.write_text(json.dumps(told))
        unfinished.rename(folder / f"{name}-{rank}.json")
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
