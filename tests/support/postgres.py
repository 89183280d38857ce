"""A PostgreSQL of a test's own: 127.0.0.1, a free port, a password, no root."""

import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import psycopg
from needs import missing
from waiting import said_by, until

from taugrad.platform.ports import free_port

USER, PASSWORD = "taugrad", "pg-secret"
_TIMEOUT_S = 60


def _program(name: str) -> str:
    """A program of PostgreSQL's server, which Debian keeps off the path."""
    places = [os.environ.get("PATH", ""), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
    result = shutil.which(name, path=os.pathsep.join(places))
    return result or missing(f"no {name} here; Debian has it in postgresql")


def _as_nobody() -> list[str]:
    """What stands before a command: the server refuses to be root."""
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        missing("no setpriv here; Debian has it in util-linux")
    return ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]


class Postgres:
    """A cluster of databases in a folder of its own; `runs` is an empty one."""

    def __init__(self) -> None:
        initdb, self._server = _program("initdb"), _program("postgres")
        self.port = free_port()
        self.uri = f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{self.port}/runs"
        # Not below pytest's folder, which another user may not enter.
        self._folder = Path(tempfile.mkdtemp(prefix="taugrad-postgres-"))
        (self._folder / "password").write_text(PASSWORD)
        if os.getuid() == 0:
            for path in (self._folder, self._folder / "password"):
                shutil.chown(path, "nobody", "nogroup")
        options = [f"--pgdata={self._folder / 'data'}", f"--pwfile={self._folder / 'password'}"]
        options += [f"--username={USER}", "--auth=scram-sha-256", "--no-sync", "--locale=C.UTF-8"]
        said_by([*_as_nobody(), initdb, *options], cwd=self._folder)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        with self.connect("postgres") as connection:
            connection.execute("CREATE DATABASE runs")

    def connect(self, database: str = "runs") -> psycopg.Connection:
        """A connection of the test's own."""
        where = {"host": "127.0.0.1", "port": self.port, "dbname": database}
        return psycopg.connect(**where, user=USER, password=PASSWORD, autocommit=True)

    def rows(self, query: str, *values: object) -> list[tuple]:
        """What a query gives."""
        with self.connect() as connection:
            return connection.execute(query, values).fetchall()

    def start(self) -> None:
        """Starts the server, and waits until it takes connections."""
        options = [f"port={self.port}", "listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off"]
        line = [*_as_nobody(), self._server, "-D", str(self._folder / "data")]
        with (self._folder / "log").open("ab") as log:
            line += [part for option in options for part in ("-c", option)]
            process = subprocess.Popen(line, cwd=self._folder, stdout=log, stderr=log)
        self._process = process
        until(self._answers, (self._folder / "log").read_text, goes_on=lambda: process.poll() is None)

    def _answers(self) -> bool:
        with suppress(psycopg.OperationalError), self.connect("postgres"):
            return True
        return False

    def stop(self) -> None:
        """Ends the server at once, with all its connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_TIMEOUT_S)
            self._process = None

    def remove(self) -> None:
        """Ends the server, and removes its folder."""
        with suppress(subprocess.TimeoutExpired):
            self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
