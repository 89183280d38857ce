"""Calls with a time limit, for functions that may never return."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


class NoAnswer(TimeoutError):
    """What was asked did not answer in time."""


def in_time(seconds: float, ask: Callable[[], T]) -> T:
    """Calls a function, and waits no longer than so many seconds for what it returns or raises.

    A function that is too slow goes on in a thread that holds nothing up, not even the interpreter's end;
    what comes of it is thrown away. Raises NoAnswer: it took longer.
    """
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # raised again where it was asked
            answer.set_exception(error)

    threading.Thread(target=run, name="taugrad-asking", daemon=True).start()
    if wait([answer], seconds).not_done:
        raise NoAnswer(f"no answer within {seconds:.3g} s")
    return answer.result()
