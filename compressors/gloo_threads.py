"""Gloo's threads, which hold Python objects for a while after a collective is done.

To let go of one (a callback, a tensor that came from Python) a thread asks for Python's lock. If it asks
while the interpreter ends, the whole process aborts: "terminate called without an active exception". On a
busy machine that happens: DistributedDataParallel keeps its process group, and so the threads, to the end.
"""

import atexit
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from torch.futures import Future

Result = TypeVar("Result")

_PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.001
_THREADS = Path("/proc/self/task")
_NAME = "pt_gloo"
"""How the names of torch's threads for gloo begin."""
_WAITING = "S"


class Once(Generic[Result]):
    """A callback that lets go of what it holds when it has run.

    The transport's thread drops a callback some time after the backward pass went on. Were that the last
    reference to a state, its process group would be destroyed by its own thread, and the process aborts.
    """

    def __init__(self, work: Callable[[Future[Any]], Result]) -> None:
        self._work: Callable[[Future[Any]], Result] | None = work
        _CALLBACKS.add(self)

    def __call__(self, arrived: Future[Any]) -> Result:
        """What the work returns; call it once."""
        work, self._work = self._work, None
        assert work is not None
        try:
            return work(arrived)
        except BaseException:
            _CALLBACKS.discard(self)  # the traceback holds it, and may be held to the end
            raise


_CALLBACKS: "WeakSet[Once[Any]]" = WeakSet()


def any_at_work() -> bool:
    """Whether a thread of gloo runs, or would if it had a processor; only Linux tells."""
    for thread in _THREADS.glob("*/stat"):
        try:
            text = thread.read_text()
        except OSError:
            continue  # it has ended
        before, _, after = text.rpartition(")")
        if before.partition("(")[2].startswith(_NAME) and after.split()[0] != _WAITING:
            return True
    return False


@atexit.register
def _let_go() -> None:
    """Waits until the threads have let go of everything; what they need for that is the lock."""
    end = perf_counter() + _PATIENCE_S
    calm = 0
    # Twice: the first time one may be waiting for the lock, which it gets while we sleep.
    while calm < 2 and perf_counter() < end:
        calm = 0 if len(_CALLBACKS) or any_at_work() else calm + 1
        sleep(_LOOK_EVERY_S)
