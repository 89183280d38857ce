"""A thread that forwards messages, so that neither the backward pass nor another worker waits for it."""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar
from weakref import finalize

Result = TypeVar("Result")
_Errand = Callable[[], None]


class Courier:
    """Runs tasks one after the other. The thread starts with the first task, and ends with the object.

    It is a daemon thread. If another worker is gone or has failed, it waits for a message that never comes,
    and must not keep this worker's process from ending, because the others notice the failure by that. Once a
    task has failed, all later tasks fail with the same error: each would wait as long for the same worker.
    """

    def __init__(self) -> None:
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._failures: list[BaseException] = []

    def send(self, errand: Callable[[], Result]) -> Future[Result]:
        """Runs a task after those before it; the future has its result or its exception."""
        if self._thread is None:
            self._thread = Thread(target=_run, args=(self._errands,), name="taugrad-courier", daemon=True)
            self._thread.start()
            finalize(self, self._errands.put, None)
        outcome: Future[Result] = Future()
        failures = self._failures  # not the object, which ends the thread when nobody has it

        def run() -> None:
            if failures:
                outcome.set_exception(failures[0])
                return
            try:
                outcome.set_result(errand())
            except BaseException as problem:  # whoever asks for the result gets it
                failures.append(problem)
                outcome.set_exception(problem)

        self._errands.put(run)
        return outcome


def _run(errands: SimpleQueue[_Errand | None]) -> None:
    while (errand := errands.get()) is not None:
        errand()
        del errand  # it holds tensors
