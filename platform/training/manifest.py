"""The manifest that completes a checkpoint: sizes and digests of its files, written last.

`manifest.json` has one form only (JSON, keys in order) and holds a checksum of itself: whatever byte changes,
in it or in a file that it names, is found. Reading goes through a function from a name to its bytes, so
that folders and buckets are alike.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

FILE = "manifest.json"
FORMAT = 6
"""The version of manifests and of the files that they name."""

Read = Callable[[str], bytes]
"""The bytes of a checkpoint's file, by name; raises OSError."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used for this run; the message says why."""


class Unusable(CheckpointError):
    """This checkpoint is damaged or of another format; the one before it may be good."""


class Unfinished(Unusable):
    """There is no manifest: there never was a checkpoint, or no complete one is left."""


@dataclass(frozen=True)
class Digest:
    """What a file must be."""

    size: int
    """Bytes."""
    sha256: str

    @classmethod
    def of(cls, path: Path) -> "Digest":
        """That of a file."""
        with path.open("rb") as file:
            return cls(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


@dataclass(frozen=True)
class Manifest:
    """Which files a checkpoint consists of."""

    run: str
    """The MLflow run."""
    iteration: int
    files: Mapping[str, Digest]
    """By name."""

    def to_bytes(self) -> bytes:
        """The manifest as a file."""
        content = {
            "files": {name: vars(digest) for name, digest in self.files.items()},
            "format": FORMAT,
            "iteration": self.iteration,
            "run": self.run,
        }
        return _text(content | {"checksum": _checksum(content)}).encode()

    @classmethod
    def read(cls, read: Read, run: str, iteration: int) -> "Manifest":
        """The manifest of the checkpoint that an MLflow run must have written after an iteration.

        Raises Unfinished: there is none; Unusable: it is damaged, of another format, or of another run or
        iteration.
        """
        try:
            data = read(FILE)
        except FileNotFoundError:
            raise Unfinished(
                f"it has no {FILE}: its writing was not finished, or an older taugrad wrote it"
            ) from None
        except OSError as error:
            raise Unusable(f"{FILE} cannot be read: {error}") from error
        return cls.from_bytes(data, run, iteration)

    @classmethod
    def from_bytes(cls, data: bytes, run: str, iteration: int) -> "Manifest":
        """What `to_bytes` gave; raises as `read` does."""
        content = _content(data)
        if content.get("format") != FORMAT:
            raise Unusable(f"it has format {content.get('format')}; this program reads {FORMAT}")
        if (content["run"], content["iteration"]) != (run, iteration):
            raise Unusable(f"it is of run {content['run']}, iteration {content['iteration']}")
        files = {name: Digest(**digest) for name, digest in content["files"].items()}
        return cls(content["run"], content["iteration"], files)

    def file(self, read: Read, name: str) -> bytes:
        """The bytes of a file that the manifest names.

        Raises Unusable: they are not those that were written, or there are none.
        """
        digest = self.files.get(name)
        if digest is None:
            raise Unusable(f"its {FILE} names no {name}")
        try:
            data = read(name)
        except FileNotFoundError:
            raise Unusable(f"{name} is missing") from None
        except OSError as error:
            raise Unusable(f"{name} cannot be read: {error}") from error
        if len(data) != digest.size:
            raise Unusable(f"{name} is damaged: {len(data)} bytes, {digest.size} were written")
        if hashlib.sha256(data).hexdigest() != digest.sha256:
            raise Unusable(f"{name} is damaged: its SHA-256 is not that in {FILE}")
        return data


def _content(data: bytes) -> dict[str, Any]:
    """What a manifest says, when each of its bytes is as it was written."""
    try:
        content = json.loads(data)
        checksum = content.pop("checksum")
        whole = _text(content | {"checksum": checksum}).encode() == data
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        whole = False
    if not whole or _checksum(content) != checksum:
        raise Unusable(f"{FILE} is damaged")
    assert isinstance(content, dict)  # it had a key
    return content


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(_text(content).encode()).hexdigest()


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


T = TypeVar("T")


def folder_name(iteration: int) -> str:
    """The folder of the checkpoint after an iteration; names sort as iterations do."""
    return f"iteration_{iteration:08d}"


@dataclass(frozen=True)
class NewestCheckpoint(Generic[T]):
    """The newest checkpoint that can be used, and the newer ones that cannot."""

    good: T | None
    """What was read from it; None: there is no checkpoint yet."""
    iteration: int
    """0 where there is none."""
    skipped: list[str]
    """The newer ones, with what is wrong with them."""


def newest_good(iterations: Iterable[int], attempt: Callable[[int], T]) -> NewestCheckpoint[T]:
    """Tries checkpoints, the newest first, until `attempt`, which reads one or raises Unusable, takes one.

    Returns the first good one; None where there was at most the beginning of a first one. Raises
    CheckpointError: there are checkpoints, and none is good.
    """
    skipped: list[str] = []
    whole = 0
    for iteration in iterations:
        try:
            return NewestCheckpoint(attempt(iteration), iteration, skipped)
        except Unusable as error:
            skipped.append(f"{folder_name(iteration)}: {error}")
            whole += not isinstance(error, Unfinished)
    if whole or len(skipped) > 1:
        raise CheckpointError(f"no good checkpoint is left: {'; '.join(skipped)}. Nothing was deleted")
    return NewestCheckpoint(None, 0, skipped)
