"""Independent pieces of one pass, side by side: the kernels release the interpreter's lock."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")

LEAST_SHARE = 2**16
"""Elements below which a thread of its own costs more than it saves."""


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="taugrad-kernel")


if hasattr(os, "register_at_fork"):  # a forked process has the pools, but none of their threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def run_all(pieces: Sequence[Callable[[], Result]], threads: int) -> list[Result]:
    """Runs every piece, at most `threads` at once, and returns their results in order.

    With one thread, or one piece, nothing leaves the calling thread, which runs the first of several.
    """
    if threads <= 1 or len(pieces) <= 1:
        return [piece() for piece in pieces]
    others = [_pool(threads - 1).submit(piece) for piece in pieces[1:]]
    return [pieces[0](), *[other.result() for other in others]]


def portions(elements: NDArray[np.int64], threads: int, share: int = LEAST_SHARE) -> list[slice]:
    """Which of many things, of so many elements, a thread takes together: in order, about a share."""
    if threads == 1 or len(elements) <= 1:
        return [slice(0, len(elements))]
    numbers = elements.cumsum() // share
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    return list(map(slice, starts, [*starts[1:], len(elements)]))


def run_shares(
    kernel: Callable[[int, int], Result], count: int, threads: int, multiple: int = 1, least: int = 1
) -> list[Result]:
    """Runs a kernel over `count` things, [start, stop) for each thread, and returns its results in order.

    Starts are multiples of `multiple`. No thread takes less than `least`, but for the last one.
    """
    step = max(-(-count // max(threads, 1)), least)
    step = -(-step // multiple) * multiple
    parts = [(start, min(start + step, count)) for start in range(0, count, step)]
    return run_all([partial(kernel, *part) for part in parts], threads)
