"""A run has one driver at a time: a lock with a heartbeat, so that nobody waits for a dead process.

A tag of the run in MLflow names the process that holds it, so every machine can see it.
"""

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

import psutil

from . import names
from .record import Record
from .store import without_timeout

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

HEARTBEAT_S = 10.0
"""Seconds from one heartbeat to the next."""
STALE_S = 60.0
"""Seconds without a heartbeat after which a process counts as dead on other machines."""
_SETTLE_S = 1.0
_CLOCK_STEP_S = 60.0
"""By how much the clock may be set: the time at which a process began is computed from it."""


class RunHeld(RuntimeError):
    """Another process holds the run; the message says which."""


@dataclass(frozen=True)
class Holder:
    """The process that holds a run, according to the run's tag."""

    host: str
    space: str
    """The namespace of process ids on that host: containers have their own."""
    pid: int
    began: float
    """When the process started, because ids are reused. Seconds since 1970, like all times here."""
    token: str
    since: float
    heartbeat: float
    """The last heartbeat."""

    @classmethod
    def this_process(cls) -> "Holder":
        """This process, with the current time as heartbeat."""
        now, pid = time.time(), os.getpid()
        return cls(socket.gethostname(), _space(), pid, _began(pid) or 0.0, uuid.uuid4().hex, now, now)

    @classmethod
    def of(cls, client: "MlflowClient", run_id: str) -> "Holder | None":
        """The holder of a run; None if its tag names nobody. Raises what the store raises."""
        try:
            return cls(**json.loads(client.get_run(run_id).data.tags[names.TAG_HOLDER]))
        except (KeyError, ValueError, TypeError):
            return None

    def is_near(self) -> bool:
        """Whether this process can, or could, see that process: same host, same namespace."""
        return (self.host, self.space) == (socket.gethostname(), _space())

    def is_alive(self) -> bool:
        """Whether it still holds the run: it runs on this machine, or gave a heartbeat recently."""
        if self.is_near():
            began = _began(self.pid)
            return began is not None and abs(began - self.began) < _CLOCK_STEP_S
        return time.time() - self.heartbeat < STALE_S

    def __str__(self) -> str:
        since, heartbeat = (
            datetime.fromtimestamp(timestamp).strftime("%H:%M:%S")
            for timestamp in (self.since, self.heartbeat)
        )
        return (
            f"process {self.pid} on {self.host} has held it since {since}, with its last heartbeat at "
            f"{heartbeat}; wait for its end, or end that process"
        )


class RunLock:
    """Keeps all other drivers from a run while a `with` block runs.

    Nobody else begins a `new` run, such as a search's trial: what holds it on another machine is waited for,
    in case that has just died.
    """

    def __init__(self, client: "MlflowClient", run_id: str, *, new: bool = False) -> None:
        self._client, self._run_id, self._new = client, run_id, new
        self._holder = Holder.this_process()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="taugrad-hold", daemon=True)
        self._is_recorded = False  # the store who has the run
        self._store_is_away = False

    def __enter__(self) -> "RunLock":
        """Takes the run; raises RunHeld, or what the store raises when it does not answer."""
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the run."""
        self._ended.set()
        self._thread.join(_SETTLE_S)
        with suppress(Exception):  # if the store is away, the missing heartbeats will say so
            if not (self._store_is_away or self._thread.is_alive()) and self.is_ours():
                self._client.delete_tag(self._run_id, names.TAG_HOLDER)

    def is_ours(self) -> bool:
        """Whether this process still holds the run: nobody took it over because this process seemed dead.

        Raises what the store raises when it does not answer.
        """
        try:
            holder = Holder.of(self._client, self._run_id)
        except Exception:
            self._store_is_away = True
            raise
        return self._is_of(holder)

    def _is_of(self, holder: Holder | None) -> bool:
        return holder.token == self._holder.token if holder else not self._is_recorded

    def _take(self) -> None:
        began = time.monotonic()
        try:
            self._refuse_if_held()
            self._write(self._client)
        except RunHeld:
            raise
        except Exception:  # the store is away, or somebody wrote at this very moment
            if self._new:
                return  # heartbeats follow
            self._refuse_if_held()
            self._write(self._client)
        if not self._new:
            # Of two that start at once, the later one overwrites: its store may be as slow as ours.
            time.sleep(_SETTLE_S + time.monotonic() - began)
            self._refuse_if_held()

    def _refuse_if_held(self) -> None:
        other = Holder.of(self._client, self._run_id)
        if other is None or other.token == self._holder.token:
            return
        if other.is_alive() and (other.is_near() or not self._new):
            raise RunHeld(str(other))
        if not other.is_near():
            # Clocks may differ: a heartbeat in the meantime says more.
            self._ended.wait(STALE_S if self._new else 1.5 * HEARTBEAT_S)
            later = Holder.of(self._client, self._run_id)
            if later is not None and later.heartbeat != other.heartbeat:
                raise RunHeld(str(later))

    def _write(self, client: "MlflowClient") -> None:
        self._holder = replace(self._holder, heartbeat=time.time())
        client.set_tag(self._run_id, names.TAG_HOLDER, json.dumps(asdict(self._holder)))
        self._is_recorded = True

    def _renew(self) -> None:
        client = without_timeout(self._client)
        while not self._ended.wait(HEARTBEAT_S):
            with suppress(Exception):  # an outage: training goes on, and so does this
                if not self._is_of(Holder.of(client, self._run_id)):
                    return
                self._write(client)
                if self._ended.is_set():  # meanwhile, and the tag may be there again
                    client.delete_tag(self._run_id, names.TAG_HOLDER)


def end_run(client: "MlflowClient", run_id: str, end: Record | None) -> str:
    """Tells MLflow how a run ended, unless it already knows or another process has continued the run.

    Returns the run's state in the store.
    """
    state = str(client.get_run(run_id).info.status)
    holder = Holder.of(client, run_id)
    if state != "RUNNING" or end is None or (holder is not None and holder.is_alive()):
        return state
    client.set_terminated(run_id, status=end.ended, end_time=end.time)
    return str(end.ended)


def _began(pid: int) -> float | None:
    """When a process of this machine began; None: there is none."""
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def _space() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
