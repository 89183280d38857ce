"""Caches the tokens of a text in a file, for later runs.

The file has a head that says what it holds, the tokens, and the SHA-256 of both. A file that does not fit its
hash is made anew.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .tokens import TokenRow

VERSION = 2
"""The version of the files' form; another number makes all of them anew."""
_HEAD, _HASH = 512, 32
"""Bytes."""


@dataclass(frozen=True)
class CachedText:
    """What a file of tokens holds: those of the training part, behind them those of the test part."""

    dtype: str
    """As NumPy writes it, little-endian."""
    train_tokens: int
    test_tokens: int
    test_bytes: int
    """Bytes of text that became the test part's tokens."""
    fingerprint: str
    """SHA-256 of the text's files and of the tokenizer."""


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
    """What is kept under a key, if it is there and whole; the file is read once for that."""
    try:
        whole = np.memmap(_path(key), np.uint8, "r")
        if hashlib.sha256(whole[:-_HASH].data).digest() != whole[-_HASH:].tobytes():
            return None
        return CachedText(**json.loads(whole[:_HEAD].tobytes()))
    except (OSError, ValueError, TypeError):
        return None


def make(key: str, write: Callable[[BinaryIO], CachedText]) -> CachedText:
    """Keeps what `write` puts into a file, and says that it holds, in place of an old one.

    Several processes may make the same at once: each has a file of its own until it is whole.
    """
    path = _path(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as unfinished:
        with Path(unfinished, path.name).open("w+b") as file:
            file.write(bytes(_HEAD))
            kept = write(file)
            file.seek(0)
            file.write(json.dumps(asdict(kept)).encode().ljust(_HEAD))
            file.seek(0)
            file.write(hashlib.file_digest(file, "sha256").digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    return kept


def mapped(key: str, kept: CachedText) -> tuple[TokenRow, TokenRow]:
    """The tokens of the training part and of the test part, mapped from the file."""
    count = kept.train_tokens + kept.test_tokens
    if count == 0:  # what is empty cannot be mapped
        return np.zeros(0, np.uint8), np.zeros(0, np.uint8)
    tokens: TokenRow = np.memmap(_path(key), np.dtype(kept.dtype), "r", offset=_HEAD, shape=(count,))
    return tokens[: kept.train_tokens], tokens[kept.train_tokens :]


def _path(key: str) -> Path:
    return folder() / f"text-{key}.bin"
