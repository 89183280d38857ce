"""Worker processes, forked from a server that has imported torch once: each would take seconds for that."""

import os
from collections.abc import Callable, Mapping
from multiprocessing import get_context, set_forkserver_preload
from multiprocessing.context import BaseContext
from typing import Any

from torch.multiprocessing.spawn import start_processes

_PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "numba"]


def forking() -> BaseContext:
    """What makes such processes."""
    set_forkserver_preload(_PRELOADED)
    return get_context("forkserver")


def run_workers(work: Callable[..., None], arguments: tuple[Any, ...], workers: int) -> None:
    """Runs `work(rank, *arguments)` in so many processes, in this one's environment.

    Args:
        work: a function of a module, not a closure.
        arguments: what else it is given.
        workers: how many.

    Raises:
        ProcessRaisedException: one of them failed; the others were ended.
    """
    forking()
    given = (dict(os.environ), work, arguments)
    start_processes(_work, given, nprocs=workers, start_method="forkserver")  # type: ignore[no-untyped-call]


def _work(
    rank: int, environment: Mapping[str, str], work: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    os.environ.update(environment)  # the server has that of its own start
    work(rank, *arguments)
