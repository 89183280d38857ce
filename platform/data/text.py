"""Text of any files: bytes, or a tokenizer's tokens."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..spec.data import Text
from . import token_cache
from .errors import DataError, needed
from .examples import Parts
from .shape import Shape
from .text_files import TextFile, find, split, standard_library
from .token_cache import CachedText
from .tokens import spaced_windows, training_windows

_PIECE = 1 << 20
"""Bytes of text that are turned into tokens together, and what is missing to the end of a line."""
_BYTES = 256


def load_text(config: Text) -> Parts:
    """Text as one long row of tokens, mapped from the cache; what is not there yet is made first.

    The fingerprint is of the files' names and contents, and of the tokenizer. Raises DataError: there are no
    files, one cannot be read or is no UTF-8 (with a tokenizer), there is too little text, or the tokenizer
    cannot be used.
    """
    given = (config.path,) if isinstance(config.path, Path) else config.path or ()
    patterns = [str(path) for path in given]
    name = ", ".join(patterns) or "the standard library"
    paths = standard_library() if config.path is None else find(patterns)
    if not paths:
        raise DataError("this Python has no source files of its own; give data.path")
    train, test = split(paths, config.test_fraction, config.split_seed)
    tokenizer = None if config.tokenizer is None else _Tokenizer(config.tokenizer)
    vocabulary = tokenizer.vocabulary if tokenizer else _BYTES
    key = token_cache.key_of(
        [*map(_stamp, train), "", *map(_stamp, test), tokenizer.sha256 if tokenizer else ""]
    )
    kept = token_cache.read(key)
    if kept is None:
        try:
            kept = token_cache.make(key, lambda out: _written(out, train, test, tokenizer))
        except OSError as error:
            raise DataError(
                f"{error.filename or token_cache.folder()}: {error.strerror or error}; "
                "the files of a text must be readable, and "
                f"{token_cache.folder()} (see XDG_CACHE_HOME) must take their tokens"
            ) from error
    train_tokens, test_tokens = token_cache.mapped(key, kept)
    bytes_per_token = kept.test_bytes / kept.test_tokens if kept.test_tokens else 1.0
    return Parts(
        training_windows(train_tokens, config.context, f"{name}: training part"),
        spaced_windows(test_tokens, config.context, config.test_examples, f"{name}: test part"),
        Shape.text(config.context, vocabulary, bytes_per_token),
        kept.fingerprint,
    )


def _stamp(file: TextFile) -> str:
    """What tells that a file has not changed since its tokens were kept."""
    stat = file.path.stat()
    return f"{file.path}\0{stat.st_size}\0{stat.st_mtime_ns}\0{file.start}\0{file.end}"


class _Tokenizer:
    """A tokenizer.json of the package tokenizers."""

    def __init__(self, path: Path) -> None:
        library = needed("tokenizers", f"tokenizer = {path}")
        try:
            self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            self._tokenizer = library.Tokenizer.from_file(str(path))
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
        except Exception as error:  # what the library raises has no type of its own
            raise DataError(f"{path}: is not a tokenizer.json of the package tokenizers ({error})") from error
        # Tokens may have numbers beyond their count, where some were left out.
        self.vocabulary = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0) + 1
        self.dtype = "<u2" if self.vocabulary <= 1 << 16 else "<u4"

    def __call__(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _written(
    out: BinaryIO, train: Sequence[TextFile], test: Sequence[TextFile], tokenizer: _Tokenizer | None
) -> CachedText:
    """Writes the tokens of both parts."""
    content = hashlib.sha256(tokenizer.sha256.encode() if tokenizer else b"")
    counts = []
    for part in (train, test):
        tokens = read = 0
        for file in part:
            content.update(f"{file.name}\0{file.end - file.start}\0".encode(errors="surrogateescape"))
            for piece, row in _rows(file, tokenizer):
                content.update(piece)
                out.write(row.data)
                tokens, read = tokens + len(row), read + len(piece)
        counts.append((tokens, read))
    (train_tokens, _), (test_tokens, test_bytes) = counts
    dtype = tokenizer.dtype if tokenizer else "|u1"
    return CachedText(dtype, train_tokens, test_tokens, test_bytes, content.hexdigest())


def _rows(file: TextFile, tokenizer: _Tokenizer | None) -> Iterator[tuple[bytes, NDArray[np.generic]]]:
    """A file's text, piece by piece, and its tokens; only a tokenizer cares where pieces end."""
    with file.path.open("rb") as text:
        text.seek(file.start)
        at = file.start
        while at < file.end:
            piece = text.read(min(_PIECE, file.end - at))
            if tokenizer is not None and at + len(piece) < file.end:
                piece += text.readline(file.end - at - len(piece))
            if not piece:
                raise DataError(
                    f"{file.path}: ends at offset {at}; it had {file.end} bytes when it was found"
                )
            if tokenizer is None:
                yield piece, np.frombuffer(piece, np.uint8)
            else:
                yield piece, np.array(tokenizer(_decoded(file.path, at, piece)), np.dtype(tokenizer.dtype))
            at += len(piece)


def _decoded(path: Path, at: int, piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: byte 0x{piece[error.start]:02x} at offset {at + error.start} is not UTF-8, which a "
            "tokenizer needs; leave tokenizer out to train on bytes"
        ) from error
