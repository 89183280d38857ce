"""How workers agree on the iteration after which an interrupted run ends, with a checkpoint.

A worker that learns of the interruption names the iteration that it has begun, and begins no other until all
have named theirs; the largest of them is the last one. So no worker waits in an exchange for one that has
ended, and training pays nothing before.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

_POLL_S = 0.5
_AGREE_S = 0.05
_PATIENCE_S = 30.0
_Answer = TypeVar("_Answer")


class Interruption:
    """A worker's part in the agreement, while a `with` block runs.

    Args:
        begun: The iteration that begins first, counted from 1.
        is_asked: Whether the run shall end; called by a thread twice a second.
        propose: Names the iteration that this worker has begun; returns the last one, or None while other
            workers have not named theirs.
    """

    def __init__(
        self, begun: int, is_asked: Callable[[], bool], propose: Callable[[int], int | None]
    ) -> None:
        self._begun, self._is_asked, self._propose = begun, is_asked, propose
        self._asked = False
        self._last: int | None = None
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="taugrad-interruption", daemon=True)

    def __enter__(self) -> "Interruption":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def ends_after(self, iteration: int) -> bool:
        """Whether the run ends after this iteration, which is done; another one begins where it does not.

        Waits for the other workers once the run was interrupted; goes on if they do not answer within 30 s.
        """
        with self._changed:
            if self._asked and not self._changed.wait_for(lambda: self._last is not None, _PATIENCE_S):
                return False
            if self._last is not None:
                return iteration >= self._last
            self._begun = iteration + 1
            return False

    def _watch(self) -> None:
        while not _answer(self._is_asked):
            if self._closed.wait(_POLL_S):
                return
        with self._changed:
            self._asked = True
            begun = self._begun
        while (last := _answer(partial(self._propose, begun))) is None:
            if self._closed.wait(_AGREE_S):
                return
        with self._changed:
            self._last = last
            self._changed.notify_all()


def _answer(ask: Callable[[], _Answer]) -> _Answer | None:
    """What is answered; None where nothing is, as it takes too long or has ended before this worker."""
    with suppress(Exception):
        return ask()
    return None
