"""Which files a text is made of, and which of them are held out."""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from .errors import DataError

_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
_SCALE = 2.0**64


@dataclass(frozen=True)
class TextFile:
    """A file of a text, or a part of it."""

    name: str
    """Below the folder that all files have in common, with `/`: the same wherever that folder lies."""
    path: Path
    start: int
    """The first byte."""
    end: int
    """Behind the last byte."""


def standard_library() -> list[Path]:
    """The running Python's own source files, without tests and installed packages."""
    root = Path(sysconfig.get_path("stdlib"))
    return [path for path in files_below(root, _NOT_LIBRARY) if path.suffix == ".py"]


def find(patterns: Sequence[str]) -> list[Path]:
    """All files that paths and patterns lead to, each once.

    A pattern is a file, a folder (all below it, but for hidden ones), or has `*`, `?`, `**`. Raises
    DataError: one of them leads to no file, or a link's target does not exist.
    """
    matching: dict[Path, None] = {}
    for pattern in patterns:
        given = Path(pattern).expanduser()
        if given.is_dir():
            files = files_below(given)
        elif given.is_file():
            files = [given]
        else:
            matches = map(Path, glob.glob(str(given), recursive=True))
            files = [path for path in matches if path.is_file() or (path.is_symlink() and not path.exists())]
        if not files:
            raise DataError(
                f"{pattern}: there is no file; expected a file, a folder that holds some, or a pattern"
            )
        for file in files:
            if not file.exists():
                raise DataError(f"{file}: is a link to {file.readlink()}, which does not exist; remove it")
        matching |= dict.fromkeys(file.resolve() for file in files)
    return list(matching)


def split(paths: Sequence[Path], fraction: float, seed: int) -> tuple[list[TextFile], list[TextFile]]:
    """Shares files out between training and test, by a hash of their names and the seed; each part sorted.

    `fraction` of them, between 0 and 1, is held out; of several files at least one is on either side. A
    single file is cut instead, behind the end of a line, or between two characters of its only line: its end
    is the test part.
    """
    folder = os.path.commonpath([path.parent for path in paths])
    files = sorted(
        (TextFile(path.relative_to(folder).as_posix(), path, 0, path.stat().st_size) for path in paths),
        key=lambda file: file.name,
    )
    if len(files) == 1:
        return _cut(files[0], fraction)
    by_chance = sorted(files, key=lambda file: _drawn(file.name, seed))
    below = sum(_drawn(file.name, seed) < fraction for file in files)
    held_out = set(by_chance[: min(max(below, 1), len(files) - 1)])
    return [file for file in files if file not in held_out], [file for file in files if file in held_out]


def _drawn(name: str, seed: int) -> float:
    """A number in 0..1 that follows from a name."""
    digest = hashlib.sha256(f"{seed}:{name}".encode(errors="surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") / _SCALE


def _cut(file: TextFile, fraction: float) -> tuple[list[TextFile], list[TextFile]]:
    at = int(file.end * (1 - fraction))
    with file.path.open("rb") as text:
        text.seek(at)
        line = text.readline()
    if at + len(line) < file.end:
        at += len(line)
    else:
        at += next((i for i, byte in enumerate(line) if byte & 0xC0 != 0x80), 0)
    return [TextFile(file.name, file.path, 0, at)], [TextFile(file.name, file.path, at, file.end)]


def files_below(root: Path, left_out: Collection[str] = ()) -> list[Path]:
    """All files below a folder, through links too, but for hidden ones and folders that are left out.

    Raises DataError: a folder cannot be read, or a link leads back to a folder that it lies in.
    """

    def fail(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror or error})") from error

    files: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        folders[:] = sorted(name for name in folders if name not in left_out and not name.startswith("."))
        for link in (Path(folder, name) for name in folders):
            if link.is_symlink() and link.parent.resolve().is_relative_to(link.resolve()):
                raise DataError(f"{link}: leads back to a folder that it lies in; remove this link")
        files += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
    return files
