"""Independent pieces of one pass, side by side: the kernels release the interpreter's lock."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Result = TypeVar("Result")


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="taugrad-kernel")


def run_all(pieces: Sequence[Callable[[], Result]], threads: int) -> list[Result]:
    """Runs every piece, at most `threads` at once, and returns their results in order.

    With one thread, or one piece, nothing leaves the calling thread.
    """
    if threads <= 1 or len(pieces) <= 1:
        return [piece() for piece in pieces]
    return list(_pool(threads).map(lambda piece: piece(), pieces))


def shares(count: int, threads: int, multiple: int = 1) -> list[tuple[int, int]]:
    """[start, stop) of each thread's share of `count` things; starts are multiples of `multiple`."""
    if count == 0:
        return []
    step = -(-count // max(threads, 1))
    step = -(-step // multiple) * multiple
    return [(start, min(start + step, count)) for start in range(0, count, step)]
