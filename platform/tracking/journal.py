"""The journal of a run: what worker 0 records, on its machine's disk until it is in MLflow.

To append a line is all that training has to do with MLflow. To store a metric takes MLflow about 50 us of
Python, and the threads of a process run Python one at a time: so a process of its own (`shipper.py`) sends
what was appended, and notes in the file's head how far it is. The file has no name: if a process is killed,
nothing stays on the disk. What was not sent by then is in a checkpoint, or its steps are made again.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from . import shipper
from .record import BEGIN, LARGE, Record, shipped

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

_LOOK_S = 0.05
_RESTART_S = 2.0
_FAILED_RESTART_S = 30.0
_LEAVING_S = 2.0


class MetricsJournal:
    """A run's journal, and what ships from it.

    `notify` is told, from a thread of its own, what the user should know. A process of its own ships, and is
    started again where it ends; or a thread of this one, where it is given a client.
    """

    def __init__(
        self, uri: str, run_id: str, notify: Callable[[str], None], client: "MlflowClient | None" = None
    ) -> None:
        self._uri, self._run_id, self._notify, self._client = uri, run_id, notify, client
        self._file = tempfile.TemporaryFile(prefix="taugrad-journal-")  # noqa: SIM115 - `close` closes it
        self._end = BEGIN
        self._unwritten = bytearray()  # where the disk is full
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="taugrad-journal", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records metrics of a step; NaN and infinities are allowed."""
        values = {name: float(value) for name, value in metrics.items()}
        self._append(Record.now(step=step, metrics=values).to_line())

    def tag(self, name: str, value: str) -> None:
        """Records a tag of the run."""
        self._append(Record.now(tags={name: value}).to_line())

    def restore(self, lines: Iterable[str]) -> None:
        """Appends what an earlier start of the run has left, in a checkpoint."""
        self._append("".join(lines))

    def unshipped(self) -> list[str]:
        """The lines that may not be in MLflow yet."""
        with self._lock:
            at = shipped(self._file.fileno())
            left = os.pread(self._file.fileno(), self._end - at, at) + self._unwritten
        return [f"{line}\n" for line in left.decode().split("\n")[:-1]]

    def flush(self, patience_s: float) -> bool:
        """Waits until everything is in MLflow, or nothing has arrived there for so many seconds.

        Returns whether it is there.
        """
        at, deadline = BEGIN, time.monotonic() + patience_s
        while (now := shipped(self._file.fileno())) < self._end or self._unwritten:
            if now != at:
                at, deadline = now, time.monotonic() + patience_s
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
            self._append("")
        return True

    def close(self, patience_s: float) -> list[str]:
        """Ships the rest, with the patience of `flush`, and ends; returns the lines that MLflow did not take.

        Closing twice is allowed.
        """
        if self._closed.is_set():
            return []
        left = [] if self.flush(patience_s) else self.unshipped()
        self._closed.set()
        if self._process is not None:
            self._process.kill()
        self._thread.join(_LEAVING_S)  # a thread may wait for a silent store
        if not self._thread.is_alive():
            self._file.close()
        return left

    def _append(self, lines: str) -> None:
        if self._closed.is_set():
            raise RuntimeError("the journal was closed")
        with self._lock:
            self._unwritten += lines.encode()
            with suppress(OSError):  # the disk is full; it is tried again with the next record
                while self._unwritten:
                    written = os.pwrite(self._file.fileno(), self._unwritten, self._end)
                    del self._unwritten[:written]
                    self._end += written

    def _attend(self) -> None:
        """Ships, again where that ends, and begins a journal anew that has become large."""
        told = False
        while not self._closed.is_set():
            failed = self._ship()
            if failed and not told:
                told = True
                self._tell("what sends metrics to MLflow has failed, see worker 0's log; it is tried again")
            with self._lock:
                if LARGE <= self._end == shipped(self._file.fileno()):
                    self._file.truncate(0)
                    self._end = BEGIN
            self._closed.wait(_FAILED_RESTART_S if failed else _RESTART_S)

    def _ship(self) -> bool:
        """Ships until that ends; whether it was by an error."""
        if self._client is not None:
            client = self._client
            shipper.follow(self._file.fileno(), lambda: client, self._run_id, self._tell, self._closed)
            return False
        try:
            self._process = process = self._started()
        except OSError:  # no memory for another process; later, perhaps
            return False
        if self._closed.is_set():
            process.kill()
        assert process.stdout is not None
        for line in process.stdout:
            self._tell(line.rstrip("\n"))
        return process.wait() > 0

    def _started(self) -> "subprocess.Popen[str]":
        """The process. It ends when its input does, so it never outlives the worker."""
        process = subprocess.Popen(
            # -P: nothing is imported from the working directory.
            [sys.executable, "-P", "-m", shipper.__name__, str(self._file.fileno()), self._run_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self._file.fileno()],
            start_new_session=True,  # Ctrl-C ends the worker, which may have something left to store
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.write(f"{self._uri}\n")  # no argument: it may have a password in it
            process.stdin.flush()
        return process

    def _tell(self, notice: str) -> None:
        with suppress(Exception):  # a broken display must not end the delivery
            self._notify(notice)
