"""A client that delays a command only for a bounded time if its store goes away during the run."""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..deadline import NoAnswer, in_time
from .store import sqlite_path

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

T = TypeVar("T")

LOST_S = 20.0
"""Seconds in total that a store without answers may cost a command. After that, it is not asked any more."""
_AGAIN_S = 60.0
"""Seconds after which it is asked once more: it may be back for the next run."""
_ONCE_S = 5.0


class Patience:
    """Lets calls fail for a number of seconds in total; a call that succeeds restores them."""

    def __init__(self, seconds: float = LOST_S) -> None:
        self._seconds = self._left = seconds
        self._again = 0.0

    def __call__(self, ask: Callable[[], T]) -> T:
        """Calls a function; raises NoAnswer: it takes longer than what is left, or nothing is left."""
        begun = time.monotonic()
        if self._left <= 0 and begun < self._again:
            raise NoAnswer(f"it has not answered for {self._seconds:.0f} s")
        try:
            answer = in_time(self._left if self._left > 0 else _ONCE_S, ask)
        except Exception:
            self._left -= time.monotonic() - begun
            self._again = time.monotonic() + _AGAIN_S
            raise
        self._left = self._seconds
        return answer


def patient(client: "MlflowClient") -> "MlflowClient":
    """The client, with calls that together wait at most `LOST_S` for a store that is away.

    A local database does not go away. Users can set a longer MLFLOW_HTTP_REQUEST_TIMEOUT for single requests.
    """
    if sqlite_path(client.tracking_uri) is not None:
        return client
    granted = os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT", "")
    return cast("MlflowClient", _Patient(client, max(LOST_S, float(granted) if granted.isdecimal() else 0)))


def impatient(client: "MlflowClient") -> "MlflowClient":
    """The client inside a patient one, for a thread that nobody waits for: its waiting is not counted."""
    return client._client if isinstance(client, _Patient) else client


class _Patient:
    def __init__(self, client: "MlflowClient", seconds: float) -> None:
        self._client, self._patience = client, Patience(seconds)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not callable(attribute):
            return attribute
        return lambda *arguments, **named: self._patience(lambda: attribute(*arguments, **named))
