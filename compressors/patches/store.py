"""A folder or a bucket, and who writes to it."""

import errno
import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import psutil
from fsspec.implementations.local import LocalFileSystem

log = getLogger("taugrad")

BEAT_S = 10.0
"""Seconds from one sign of life of a writer to the next."""
STALE_S = 60.0
"""Seconds without one after which a writer on another machine counts as dead."""
NAME = re.compile(r"(\d{10})(?:\.(\d+)of(\d+))?\.(patch|safetensors)")
_KEY = re.compile("[0-9a-f]{16}")
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What `os.link` says where a folder has no hard links."""
_CHANGES = ("mtime", "LastModified", "last_modified", "updated", "created", "ETag", "etag", "ino")
"""What file systems list that differs when a file is written again."""


class File(NamedTuple):
    """A file as a listing shows it; another one if it has been written again."""

    size: int
    changes: tuple[str, ...]


class Store:
    """A folder or a bucket, whose files appear whole or not at all."""

    def __init__(self, place: str | os.PathLike[str]) -> None:
        """Opens a path, or an address that fsspec knows, such as s3://bucket/run."""
        self.place = os.fspath(place)
        try:  # no instance of others, whose files would join our transactions
            self._system, self._folder = fsspec.url_to_fs(self.place, skip_instance_cache=True)
            self._transacts = True
        except ImportError as missing:
            try:  # pyarrow, which the platform has, has clients of its own
                from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415
                from pyarrow.fs import FileSystem  # noqa: PLC0415
            except ImportError:
                raise missing from None
            system, self._folder = FileSystem.from_uri(self.place)
            self._system, self._transacts = ArrowFSWrapper(system), False
        self._local = isinstance(self._system, LocalFileSystem)
        self.key = secrets.token_hex(8)  # as _KEY says
        self.part = f"{self.key}.part"
        """The file that is written to before it has its name, in a folder."""

    def files(self) -> dict[str, File]:
        """The files of a stream; none if the folder does not exist yet."""
        self._system.invalidate_cache()
        try:
            rows = self._system.ls(self._folder, detail=True)
        except FileNotFoundError:
            return {}
        files = {row["name"].rpartition("/")[2]: row for row in rows}
        return {
            name: File(int(files[name]["size"] or 0), tuple(str(files[name].get(key)) for key in _CHANGES))
            for name in sorted(files)
            if NAME.fullmatch(name)
        }

    def read(self, name: str, end: int | None = None) -> bytes:
        """Reads a file, or its beginning; raises FileNotFoundError."""
        with self._system.open(f"{self._folder}/{name}", "rb") as file:
            data: bytes = file.read(end)
        return data

    def write(self, name: str, buffers: Iterable[Any]) -> int:
        """Writes a new file, and returns its bytes.

        Raises:
            FileExistsError: it exists.
            OSError: it cannot be written; then nothing is left of it, if the store still answers.
        """
        self._system.makedirs(self._folder, exist_ok=True)
        path = f"{self._folder}/{name}"
        if self._system.exists(path):
            raise FileExistsError(f"{path} exists")
        if self._local:
            return self._write_file(path, buffers)
        try:  # an object appears when it is complete; an upload that fails is aborted
            transaction = self._system.transaction if self._transacts else nullcontext()
            with transaction, self._system.open(path, "wb") as file:
                return sum(file.write(buffer) or len(buffer) for buffer in buffers)
        except BaseException:
            with suppress(Exception):  # some clients complete what they have when a file is closed
                self.remove(name)
            raise

    def _write_file(self, path: str, buffers: Iterable[Any]) -> int:
        part = f"{self._folder}/{self.part}"
        try:
            with open(part, "wb") as file:
                size = sum(map(file.write, buffers))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(part, path)
            except OSError as problem:
                if problem.errno not in _NO_LINKS:
                    raise
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))  # readers leave an empty file out
                try:
                    os.replace(part, path)
                except BaseException:
                    os.unlink(path)
                    raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
        return size

    def replace(self, name: str, data: bytes) -> None:
        """Writes a small file whole, whether it exists or not."""
        if self._local:
            self.overwrite(self.part, data)
            os.replace(f"{self._folder}/{self.part}", f"{self._folder}/{name}")
        else:  # an object appears when it is complete
            self.overwrite(name, data)

    def overwrite(self, name: str, data: bytes) -> None:
        """Writes a small file, whether it exists or not."""
        with self._system.open(f"{self._folder}/{name}", "wb") as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Removes a file, if it exists."""
        with suppress(FileNotFoundError):
            self._system.rm_file(f"{self._folder}/{name}")


class Lease:
    """A file that says who writes to a place, and another one with that process's last sign of life."""

    def __init__(self, store: Store, rank: int, take_over: bool) -> None:
        """Takes a store's place; waits for a sign of life of a writer that another machine has left.

        Raises:
            FileExistsError: another writer lives, or may live, and `take_over` is not set.
        """
        # A store of its own, whose files do not join the other one's transactions.
        self._store, self._name = Store(store.place), f"writer-{rank}.json"
        self._beat = f"writer-{rank}.alive"
        me, self._ended = psutil.Process(), threading.Event()
        self._here = {"host": socket.gethostname(), "space": _process_space()}
        holder = self._here | {"pid": me.pid, "began": _began(me), "key": store.key}
        self._data = json.dumps(holder).encode()
        with suppress(FileNotFoundError):
            data = self._store.read(self._name)
            if data:  # not of one that was killed while it took the place
                other, way = _holder(data), f"take_over=True takes its place, or remove {self._name} there"
                if other is None and not take_over:
                    raise FileExistsError(f"{self._store.place}: {self._name} is damaged; {way}")
                if other is not None:
                    who = f"{self._store.place} is written by process {other['pid']} on {other['host']}"
                    if not take_over and self._is_alive(data, other, who):
                        raise FileExistsError(f"{who}; if that one is gone, {way}")
                    self._store.remove(f"{other['key']}.part")
            self._store.remove(self._name)
        self._store.write(self._name, [self._data])
        self._store.overwrite(self._beat, str(time.time()).encode())
        threading.Thread(target=self._keep, name="taugrad-lease", daemon=True).start()

    def _is_alive(self, data: bytes, other: Mapping[str, Any], who: str) -> bool:
        """Whether another writer lives: its process runs here, or it gives a sign of life elsewhere."""
        if {key: other.get(key) for key in self._here} == self._here:
            try:
                process = psutil.Process(other["pid"])
                return _began(process) == other["began"] and process.status() != psutil.STATUS_ZOMBIE
            except psutil.NoSuchProcess:
                return False
        beat = self._last_beat()
        age = 0.0
        with suppress(ValueError):  # there is none, or it is damaged
            age = time.time() - float(beat)
        wait_s = max(1.5 * BEAT_S, STALE_S - max(age, 0.0))  # clocks may differ: a new sign says more
        log.warning("%s: waits %.0f s at most for a sign of life", who, wait_s)
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            time.sleep(min(1.0, BEAT_S / 10))
            if self._store.read(self._name) != data:  # FileNotFoundError where it has been closed
                return True
            if self._last_beat() not in (beat, b""):
                return True
        return False

    def _last_beat(self) -> bytes:
        try:
            return self._store.read(self._beat)
        except FileNotFoundError:
            return b""

    def _keep(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(Exception):  # an outage: the next one may come through
                if not self.held():
                    return
                self._store.overwrite(self._beat, str(time.time()).encode())

    def held(self) -> bool:
        """Whether no other writer has taken the place over."""
        try:
            return self._store.read(self._name) == self._data
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Lets another writer have the place."""
        self._ended.set()
        if self.held():
            self._store.remove(self._name)
            self._store.remove(self._beat)


def _holder(data: bytes) -> dict[str, Any] | None:
    """What the file of a lease, untrusted, says about its writer; None if it is no such file."""
    with suppress(ValueError, RecursionError):
        holder = json.loads(data)
        if (
            isinstance(holder, dict)
            and holder.keys() >= {"host", "space", "pid", "began", "key"}
            and type(holder["pid"]) is int
            and 0 < holder["pid"] < 2**31
            and _KEY.fullmatch(str(holder["key"]))  # it is part of a path
        ):
            return holder
    return None


def _began(process: psutil.Process) -> str | float:
    """When a process began: on Linux, by a clock that nobody sets."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return f"{boot} {fields[19]}"  # starttime, in clock ticks since the boot
    return float(process.create_time())


def _process_space() -> str:
    """The namespace of process ids: containers on one host have their own."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""
