"""Groups of workers for tests, each a process that calls a function of a module of this folder.

    python group.py RANK WORKERS FOLDER MODULE FUNCTION ARGUMENT...

It is called as FUNCTION(RANK, WORKERS, FOLDER, ARGUMENT...) in a process group of the workers; what it
returns is in FOLDER/result_RANK.pt then.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked import Worker, run_workers

SCRIPT = Path(__file__)
TIMEOUT_S = 600


def run_group(
    module: str, function: str, workers: int, folder: Path, *arguments: object, timeout_s: float = TIMEOUT_S
) -> list[Any]:
    """What each of so many workers returned; raises AssertionError where one fails, or hangs."""
    folder.mkdir(exist_ok=True)
    run_workers(
        SCRIPT,
        lambda rank: (rank, workers, folder, module, function, *arguments),
        workers,
        timeout_s=timeout_s,
    )
    return results(folder, workers)


def started_group(module: str, function: str, workers: int, folder: Path, *arguments: object) -> list[Worker]:
    """Workers that a test watches, stops or kills while they run; their output is in FOLDER/RANK.log."""
    return [
        Worker(SCRIPT, (rank, workers, folder, module, function, *arguments), folder / f"{rank}.log")
        for rank in range(workers)
    ]


def results(folder: Path, workers: int) -> list[Any]:
    """What workers that have ended returned."""
    return [torch.load(folder / f"result_{rank}.pt", weights_only=True) for rank in range(workers)]


def step_of(worker: Worker) -> int:
    """The latest of which a worker has said `step N`; -1 before."""
    numbers = [int(line.split()[1]) for line in worker.lines if line.startswith("step")]
    return numbers[-1] if numbers else -1


def main(rank: int, workers: int, folder: Path, module: str, function: str, *arguments: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"store_{workers}"), workers)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=workers)
    result = getattr(import_module(module), function)(rank, workers, folder, *arguments)
    torch.save(result, folder / f"result_{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
