"""Caches the tokens of a text in a file, for later runs.

Beside the file of tokens lies a record of what it holds. A file that does not fit its record is made anew.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .windows import TokenRow

VERSION = 1
"""Of the files' form; another number makes all of them anew."""


@dataclass(frozen=True)
class CachedText:
    """What a file of tokens holds: those of the training part, behind them those of the test part."""

    dtype: str
    """As NumPy writes it, little-endian."""
    train_tokens: int
    test_tokens: int
    test_bytes: int
    """Of text, that became the test part's tokens."""
    fingerprint: str
    """SHA-256 of the text's files and of the tokenizer."""
    sha256: str
    """Of the file of tokens."""


def folder() -> Path:
    """Where the files are kept: `taugrad` in `XDG_CACHE_HOME`, or in `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "taugrad"


def key_of(parts: Iterable[str]) -> str:
    """A name for a text that was made from certain things, 32 hex digits."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for part in parts:
        text = part.encode(errors="surrogateescape")
        digest.update(len(text).to_bytes(8, "big") + text)
    return digest.hexdigest()[:32]


def read(key: str) -> CachedText | None:
    """What is kept under a key, if it is there and whole; the file of tokens is read once for that."""
    record, tokens = _paths(key)
    try:
        said = json.loads(record.read_text(encoding="utf-8"))
        kept = CachedText(**said["holds"])
        if said["check"] != _check(kept):
            return None
        with tokens.open("rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == kept.sha256
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return kept if whole else None


@contextlib.contextmanager
def writing(key: str) -> Iterator[BinaryIO]:
    """A file for the tokens; it takes the old one's place when the context ends well."""
    _, tokens = _paths(key)
    tokens.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(tokens) as file:
        yield file


def write_record(key: str, kept: CachedText) -> None:
    """Says what the file of tokens holds, after it was written."""
    with _replacing(_paths(key)[0]) as file:
        file.write(json.dumps({"holds": asdict(kept), "check": _check(kept)}, indent=1).encode())


def mapped(key: str, kept: CachedText) -> tuple[TokenRow, TokenRow]:
    """The tokens of the training part and of the test part, mapped from the file."""
    if kept.train_tokens + kept.test_tokens == 0:  # what is empty cannot be mapped
        return np.zeros(0, np.uint8), np.zeros(0, np.uint8)
    tokens: TokenRow = np.memmap(_paths(key)[1], np.dtype(kept.dtype), "r")
    return tokens[: kept.train_tokens], tokens[kept.train_tokens :]


def _check(kept: CachedText) -> str:
    return hashlib.sha256(json.dumps(asdict(kept)).encode()).hexdigest()


def _paths(key: str) -> tuple[Path, Path]:
    return folder() / f"text-{key}.json", folder() / f"text-{key}.bin"


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Several processes may write the same at once: each has a file of its own until it is whole."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
        try:
            yield file  # type: ignore[misc]  # mypy knows no BinaryIO in it
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise
