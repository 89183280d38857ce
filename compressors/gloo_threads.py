"""Waits at exit for gloo's threads, which hold Python objects for a while after a collective is done.

To release one (a callback, a tensor that came from Python), a thread takes the GIL. If it does so while the
interpreter finalizes, the process aborts: "terminate called without an active exception". On a busy machine
that happens, as DistributedDataParallel keeps its process group, and so the threads, to the end.
"""

import atexit
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from torch.futures import Future

Result = TypeVar("Result")

_TIMEOUT_S = 5.0
_POLL_S = 0.001
_THREADS = Path("/proc/self/task")
_NAME = "pt_gloo"
"""The prefix of the names of torch's threads for gloo."""
_SLEEPING = "S"


class Once(Generic[Result]):
    """A callback for one call, which drops its references then.

    The transport's thread releases a callback some time after the call. If that were the last reference to a
    state, its process group would be destroyed by its own thread, and the process would abort.
    """

    def __init__(self, work: Callable[[Future[Any]], Result]) -> None:
        self._work: Callable[[Future[Any]], Result] | None = work
        _CALLBACKS.add(self)

    def __call__(self, arrived: Future[Any]) -> Result:
        """Calls the function, and drops it."""
        work, self._work = self._work, None
        assert work is not None
        try:
            return work(arrived)
        except BaseException:
            _CALLBACKS.discard(self)  # the traceback refers to it, and may live to the end
            raise


_CALLBACKS: "WeakSet[Once[Any]]" = WeakSet()


def any_running() -> bool:
    """Whether a thread of gloo is running or runnable; on Linux only."""
    for thread in _THREADS.glob("*/stat"):
        try:
            text = thread.read_text()
        except OSError:
            continue  # it has ended
        before, _, after = text.rpartition(")")
        if before.partition("(")[2].startswith(_NAME) and after.split()[0] != _SLEEPING:
            return True
    return False


@atexit.register
def _wait_for_threads() -> None:
    """Waits until the threads hold no Python object; for that they need the GIL."""
    end = perf_counter() + _TIMEOUT_S
    idle = 0
    # Twice: the first time, one may be waiting for the GIL, which it gets while this thread sleeps.
    while idle < 2 and perf_counter() < end:
        idle = 0 if len(_CALLBACKS) or any_running() else idle + 1
        sleep(_POLL_S)
