"""The coordinator as a process: its socket, and its table in a file of SQLite.

What a table's file cannot take, such as on a full disk, nobody is told: no round is decided until it can be
written again.
"""

import logging
import secrets
import sqlite3
from pathlib import Path
from threading import Event, Thread
from time import monotonic

import numpy as np
import zmq
from pydantic import ValidationError
from zmq.utils.monitor import recv_monitor_message

from ...errors import CompressionError, CorruptMessage
from . import sockets
from .decisions import Coordinator, OldTable, Table
from .messages import Hello, Message, Report, Want, from_bytes, to_bytes

_MOST_BYTES = 1 << 21
_RETRY_S = 1.0

log = logging.getLogger("taugrad")


class CoordinatorFailed(CompressionError):
    """The coordinator lacks something that it needs; the message is one sentence."""


class TableFile:
    """A table in a file, which one coordinator holds at a time."""

    def __init__(self, path: Path) -> None:
        """Opens or makes the file; raises CoordinatorFailed if it is none, or another one has it."""
        self._path = path
        try:
            self._database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS coordinator (id INTEGER PRIMARY KEY CHECK (id = 1), state TEXT)"
            )
            self._database.execute("BEGIN EXCLUSIVE")
            self._database.execute("COMMIT")
        except sqlite3.Error as problem:
            hint = " (another coordinator runs with it)" if "locked" in str(problem) else ""
            raise CoordinatorFailed(f"the state file {path} cannot be used: {problem}{hint}") from None

    def read(self) -> Table:
        """The table, or a new one; raises CoordinatorFailed if it cannot be read."""
        try:
            row = self._database.execute("SELECT state FROM coordinator").fetchone()
            return Table(run=secrets.token_hex(8)) if row is None else Table.model_validate_json(row[0])
        except sqlite3.Error as problem:
            raise CoordinatorFailed(f"the state file {self._path} cannot be read: {problem}") from None
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise CoordinatorFailed(
                f"the state file {self._path} is damaged: {where}: {first['msg']}"
            ) from None

    def write(self, table: Table) -> None:
        """Makes the table durable; raises sqlite3.Error, such as on a full disk."""
        self._database.execute("REPLACE INTO coordinator VALUES (1, ?)", (table.model_dump_json(),))

    def close(self) -> None:
        """Lets another coordinator have the file."""
        self._database.close()


class CoordinatorServer:
    """Runs a coordinator, in this thread (`run`) or in one of its own (`start`).

    Attributes:
        address: HOST:PORT, at which it listens.
    """

    def __init__(self, listen: str, key: bytes, file: TableFile, *, accept_older: bool = False) -> None:
        """Starts an epoch and listens.

        Args:
            listen: HOST:PORT, or PORT of 127.0.0.1; port 0 is any that is free.
            key: the run's.
            file: with the run's table; it is closed with the server.
            accept_older: see `Coordinator`.

        Raises:
            CoordinatorFailed: the address cannot be listened at, or the table not be written.
            ValueError: `listen` is no address, or the key is too short.
        """
        self._file, self._closing = file, Event()
        table = file.read()
        self._coordinator = Coordinator(table, secrets.token_hex(8), monotonic(), accept_older=accept_older)
        self._retry_at = 0.0
        self._connections: dict[str, int] = {}
        """By process, the descriptor of its latest connection."""
        host, port = sockets.address_of(listen)
        try:
            file.write(table)  # no member follows an epoch that could come twice
            self._listener = sockets.Listener(host, port, key, sockets.COORDINATOR, _MOST_BYTES)
        except sqlite3.Error as problem:
            raise CoordinatorFailed(f"the state file cannot be written: {problem}") from None
        except OSError as problem:
            raise CoordinatorFailed(str(problem)) from None
        self.address, self._router = self._listener.address, self._listener.router
        self._monitor = self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._listener.watch(self._monitor)
        self._thread = Thread(target=self._run_logged, name="taugrad-coordinator", daemon=True)

    def start(self) -> None:
        """Runs in a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Ends it; members wait for the next one with the same file."""
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """Lets `run` end."""
        self._closing.set()

    def run(self) -> None:
        """Runs until `stop`; raises OldTable if members know of a later table."""
        try:
            while not self._closing.is_set():
                self._listener.wait()
                self._read()
                self._read_monitor()
                self._coordinator.tick(monotonic())
                self._spread()
        finally:
            self._router.disable_monitor()
            self._listener.close(self._monitor)
            self._file.close()

    def _run_logged(self) -> None:
        try:
            self.run()
        except OldTable as problem:
            log.error("the coordinator stops: %s", problem)

    def _read(self) -> None:
        """Handles all that has arrived."""
        while self._router.poll(0):
            identity, frame, *_ = self._router.recv_multipart(copy=False)
            process = identity.bytes.decode("latin-1")  # any bytes, and back
            self._connections[process] = int(frame.get(zmq.SRCFD))
            try:
                message = from_bytes(np.frombuffer(frame.buffer, np.uint8), f"process {process}")
            except CorruptMessage as problem:
                log.warning("%s", problem)
                continue
            match message:
                case Hello() if message.process != process:
                    log.warning("process %s says that it is %s: ignored", process, message.process)
                case Hello() if not sockets.is_endpoint(message.endpoint):
                    log.warning("process %s listens at %r: ignored", process, message.endpoint)
                case Hello() | Report():
                    self._coordinator.handle(process, message, monotonic())
                case Want():
                    self._send(process, self._coordinator.view(0, monotonic()))
                case _:
                    log.warning("process %s sent a %s, which is not for a coordinator", process, message.kind)

    def _read_monitor(self) -> None:
        while self._monitor.poll(0):
            closed = recv_monitor_message(self._monitor)["value"]
            for process in [name for name, latest in self._connections.items() if latest == closed]:
                del self._connections[process]
                self._coordinator.close(process, monotonic())

    def _spread(self) -> None:
        """Makes the table durable, and sends what follows from it; where it cannot, tries again later."""
        coordinator = self._coordinator
        if coordinator.is_dirty:
            if monotonic() < self._retry_at:
                return
            try:
                self._file.write(coordinator.table)
            except sqlite3.Error as problem:
                if not self._retry_at:
                    log.error(
                        "the state file cannot be written: %s; until it can, no round is decided", problem
                    )
                self._retry_at = monotonic() + _RETRY_S
                return
            if self._retry_at:
                log.warning("the state file can be written again")
            coordinator.is_dirty, self._retry_at = False, 0.0
        messages, coordinator.messages = coordinator.messages, []
        for process, message in messages:
            self._send(process, message)

    def _send(self, process: str, message: Message) -> None:
        self._router.send_multipart([process.encode("latin-1"), to_bytes(message).data], copy=False)
