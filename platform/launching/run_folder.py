"""A run's folder in its storage, on a disk or in a bucket, and the checkpoints in it.

Ray Train's own list of checkpoints, a file that is overwritten in place, is not used: once it is damaged, a
run could no longer go on. Here a folder's name says after which iteration it was written, and its manifest
that it is whole.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..deadline import in_time
from ..training.manifest import (
    FILE,
    CheckpointError,
    Manifest,
    NewestCheckpoint,
    Read,
    Unfinished,
    folder_name,
    newest_good,
)
from .storage import below, reason

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_NAME = re.compile(r"iteration_(\d{8,})")
RAYS_LIST = "checkpoint_manager_snapshot.json"
"""Ray Train's own, which it would refuse when it is damaged."""
SET_ASIDE = ".not-used"
"""The suffix of files that must not be read any more."""


class RunFolder:
    """A run's folder in its storage; people see its address, by default the path."""

    def __init__(self, filesystem: "FileSystem", path: str, run_id: str, address: str = "") -> None:
        self._filesystem, self._path, self.run_id = filesystem, path, run_id
        self.address = path if not address or self.local else address
        """Such as `/shared/runs/RUN` or `s3://bucket/runs/RUN`."""

    @classmethod
    def at(cls, storage: str, run_id: str) -> "RunFolder":
        """That of a run under a storage, an absolute path or an address; raises OSError or ValueError."""
        from pyarrow.fs import FileSystem  # noqa: PLC0415 - takes half a second

        filesystem, path = FileSystem.from_uri(storage)
        return cls(filesystem, f"{path.rstrip('/')}/{run_id}", run_id, below(storage, run_id))

    @property
    def local(self) -> Path | None:
        """Where it is on this machine's disks; None for a bucket."""
        return Path(self._path) if self._filesystem.type_name == "local" else None

    def iterations(self) -> list[int]:
        """After which iterations there may be checkpoints, the newest first."""
        from pyarrow.fs import FileSelector  # noqa: PLC0415

        infos = self._filesystem.get_file_info(FileSelector(self._path, allow_not_found=True))
        names = (_NAME.fullmatch(info.base_name) for info in infos)
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def reader(self, iteration: int) -> Read:
        """Reads a checkpoint's files."""
        return lambda name: self._read(self._file(iteration, name))

    def manifest(self, iteration: int) -> Manifest:
        """A checkpoint's manifest; raises Unusable."""
        return Manifest.read(self.reader(iteration), self.run_id, iteration)

    def check(self) -> NewestCheckpoint[Manifest]:
        """Looks for a good checkpoint, in every byte; raises CheckpointError: none of them is good."""

        def whole(iteration: int) -> Manifest:
            manifest, read = self.manifest(iteration), self.reader(iteration)
            for name in manifest.files:
                manifest.file(read, name)
            return manifest

        return newest_good(self.iterations(), whole)

    def reopen(self, iteration: int) -> None:
        """Takes the manifest away of what is about to be written anew."""
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._file(iteration, FILE))

    def to_disk(self, iteration: int, names: list[str]) -> None:
        """Waits until files are on the disk, where this machine has one for them."""
        if self.local is not None:
            for name in names:
                _to_disk(Path(self._file(iteration, name)))

    def seal(self, manifest: Manifest) -> None:
        """Makes a folder whose files are all there a checkpoint, at once or not at all."""
        target = self._file(manifest.iteration, FILE)
        self._write(f"{target}.part", manifest.to_bytes())
        self.to_disk(manifest.iteration, [f"{FILE}.part"])
        self._filesystem.move(f"{target}.part", target)
        if self.local is not None:
            _to_disk(self.local / folder_name(manifest.iteration))
            _to_disk(self.local)

    def keep(self, newest: int, count: int) -> None:
        """Removes all but so many of the newest checkpoints, and what is left of unfinished ones before them.

        The newest was just written; folders of later iterations are left alone.
        """
        stay = 1
        for iteration in self.iterations():
            if iteration >= newest:
                continue
            try:
                self.manifest(iteration)
                stay += 1
            except Unfinished:
                self.discard(iteration)
                continue
            except CheckpointError:
                pass  # not ours to remove before its turn
            if stay > count:
                self.discard(iteration)

    def set_aside(self, *names: str) -> None:
        """Renames files that an earlier start of the run left, and that nobody shall read any more."""
        for name in names:
            if self._has(name):  # a bucket raises errors of its own where it has not
                self._filesystem.move(f"{self._path}/{name}", f"{self._path}/{name}{SET_ASIDE}")

    def text(self, name: str) -> str:
        """A text in the folder; empty where there is none. Raises OSError."""
        return self._read(f"{self._path}/{name}").decode() if self._has(name) else ""

    def keep_text(self, name: str, text: str) -> str:
        """Writes a text into the folder, at once or not at all; returns its address. Raises OSError."""
        self._filesystem.create_dir(self._path)
        target = f"{self._path}/{name}"
        self._write(f"{target}.part", text.encode())
        self._filesystem.move(f"{target}.part", target)
        return below(self.address, name)

    def put(self, iteration: int, path: Path) -> None:
        """Copies a file of this machine to a checkpoint's files. Raises OSError."""
        self._filesystem.create_dir(f"{self._path}/{folder_name(iteration)}")
        target = self._file(iteration, path.name)
        with path.open("rb") as file, self._filesystem.open_output_stream(target) as stream:
            shutil.copyfileobj(file, stream)
        self.to_disk(iteration, [path.name])

    def size(self, iteration: int, name: str) -> int | None:
        """Bytes of a checkpoint's file; None where there is no such file. Raises OSError."""
        info = self._filesystem.get_file_info(self._file(iteration, name))
        return None if info.size is None else int(info.size)

    def discard(self, iteration: int) -> None:
        """Removes a checkpoint, or what is there of one, as far as that can be done."""
        with suppress(OSError):  # the next checkpoint tries again
            self.reopen(iteration)  # first: what is half removed is no checkpoint
            self._filesystem.delete_dir(f"{self._path}/{folder_name(iteration)}")

    def _read(self, path: str) -> bytes:
        with self._filesystem.open_input_stream(path) as stream:
            return bytes(stream.read())

    def _write(self, path: str, data: bytes) -> None:
        with self._filesystem.open_output_stream(path) as stream:
            stream.write(data)

    def _has(self, name: str) -> bool:
        return bool(self._filesystem.get_file_info(f"{self._path}/{name}").is_file)

    def _file(self, iteration: int, name: str) -> str:
        return f"{self._path}/{folder_name(iteration)}/{name}"


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_STORE_S = 30.0
"""A bucket that is silent may take so long for a text."""


def fallback(run_id: str) -> RunFolder:
    """Where this machine keeps what a run's storage did not take."""
    return RunFolder.at(str(Path.home() / ".taugrad" / "not-stored"), run_id)


def keep_text(folder: RunFolder, name: str, text: str) -> str:
    """Writes a text into a run's folder, or, where that fails, into this machine's; returns where it is.

    Raises OSError: neither could be written.
    """
    try:
        return in_time(_STORE_S, lambda: folder.keep_text(name, text))
    except Exception as error:  # buckets raise many types
        place = fallback(folder.run_id)
        try:
            return place.keep_text(name, text)
        except OSError as second:
            raise OSError(f"{folder.address}: {reason(error)}; {place.address}: {reason(second)}") from error


def text_of(folder: RunFolder, name: str) -> str:
    """A text where `keep_text` has put it; empty where there is none. Raises OSError: it cannot be read."""
    try:
        return fallback(folder.run_id).text(name) or in_time(_STORE_S, lambda: folder.text(name))
    except Exception as error:  # buckets raise many types
        raise OSError(f"{folder.address}: {reason(error)}") from error
