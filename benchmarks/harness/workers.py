"""Worker processes, forked from a server that has imported torch once: each would take seconds for that."""

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from taugrad.platform.spec import RunSpec

from .report import say

_PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "numba"]


def forking() -> BaseContext:
    """What makes such processes."""
    set_forkserver_preload(_PRELOADED)
    return get_context("forkserver")


def run_workers(work: Callable[..., None], arguments: tuple[Any, ...], workers: int) -> None:
    """Runs `work(rank, *arguments)`, a function of a module, in so many processes, in this one's environment.

    Raises ProcessRaisedException: one of them failed; the others were ended.
    """
    forking()
    given = (dict(os.environ), work, arguments)
    start_processes(_work, given, nprocs=workers, start_method="forkserver")  # type: ignore[no-untyped-call]


def _work(
    rank: int, environment: Mapping[str, str], work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(environment)  # the server has that of its own start
    work(rank, *arguments)


def found_by(work: Callable[..., Any], arguments: tuple[Any, ...], workers: int) -> list[Any]:
    """What `work(*arguments)` returned, by rank, of so many workers in a group over gloo on loopback.

    `work` is a function of a module, whose result can be JSON.
    """
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="taugrad-") as name:
        run_workers(_in_group, (work, arguments, workers, Path(name)), workers)
        return [json.loads((Path(name) / f"{rank}.json").read_text("utf-8")) for rank in range(workers)]


def train_all(
    train: Callable[..., dict[str, Any]], specs: Sequence[RunSpec], *more: Sequence[Any]
) -> list[dict[str, Any]]:
    """Trains specs of equally many processes, one after the other, in processes that end with this call.

    `train` is a function of a module: of a spec as JSON and the elements of `more` that belong to it.
    """
    (processes,) = {spec.processes for spec in specs}
    rows = list(zip([spec.model_dump_json() for spec in specs], *more, strict=True))
    results: list[dict[str, Any]] = found_by(_train_all, (train, rows), processes)[0]
    return results


def _train_all(train: Callable[..., dict[str, Any]], rows: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    results = []
    for row in rows:
        results.append(train(*row))
        if dist.get_rank() == 0:
            say(f"  {len(results)} of {len(rows)} trainings")
    return results


def train_by(processes: int, train: Callable[[str], dict[str, float]], text: str) -> dict[str, float]:
    """What worker 0 found; by this process, which is in a process group, where there is one worker."""
    results: dict[str, float] = train(text) if processes == 1 else found_by(train, (text,), processes)[0]
    return results


def _in_group(
    rank: int, work: Callable[..., Any], arguments: tuple[Any, ...], workers: int, folder: Path
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=workers)
    (folder / f"{rank}.json").write_text(json.dumps(work(*arguments)), encoding="utf-8")
    dist.barrier()  # nobody leaves while a collective's last reference is being dropped elsewhere
    dist.destroy_process_group()
