"""A training by a process for each worker, over gloo on the loopback interface."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from .workers import run_workers

Train = Callable[[str], dict[str, float]]
"""Trains a spec, as JSON; a function of a module, not a closure."""


def train_by(processes: int, train: Train, text: str) -> dict[str, float]:
    """What worker 0 found; by this process, which is in a process group, where there is one worker."""
    if processes == 1:
        return train(text)
    with tempfile.TemporaryDirectory(prefix="taugrad-") as folder:
        arguments = (train, text, processes, Path(folder))
        run_workers(_work, arguments, processes)
        found: dict[str, float] = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return found


def _work(rank: int, train: Train, text: str, processes: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    found = train(text)
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()  # nobody leaves while a collective's last reference is being dropped elsewhere
    dist.destroy_process_group()
