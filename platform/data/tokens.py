"""nanoGPT's files: tokens of 16 bits, little-endian, one after the other, without a header."""

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .config import Tokens
from .errors import DataError
from .examples import Parts
from .shape import Shape
from .windows import SpacedWindows, Windows

_CHUNK = 1 << 24
"""Tokens that are looked at together."""


def load_tokens(config: Tokens) -> Parts:
    """Maps a folder's `train.bin` and `val.bin`. Both are read once, for their hash and their largest token.

    Args:
        config: the folder, the vocabulary, the windows.

    Returns:
        Windows of tokens.

    Raises:
        DataError: a file is missing, holds half a token, too few, or one beyond the vocabulary.
    """
    digest = hashlib.sha256()
    names = [config.path / name for name in ("train.bin", "val.bin")]
    parts = [_mapped(name) for name in names]
    largest = max(
        _looked_through(*each, config.vocabulary, digest) for each in zip(names, parts, strict=True)
    )
    vocabulary = config.vocabulary or largest + 1
    return Parts(
        Windows(parts[0], config.context, str(names[0])),
        SpacedWindows(parts[1], config.context, config.test_examples, str(names[1])),
        Shape.text(config.context, vocabulary),
        digest.hexdigest(),
    )


def _mapped(path: Path) -> NDArray[np.uint16]:
    try:
        size = path.stat().st_size
        if size % 2:
            raise DataError(
                f"{path}: holds {size} bytes; a token has 2, so half a token is at offset {size - 1}"
            )
        if size == 0:
            raise DataError(f"{path}: is empty; expected tokens of 16 bits")
        return np.memmap(path, "<u2", "r")
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); expected tokens of 16 bits, as nanoGPT's "
            "prepare.py writes them to train.bin and val.bin"
        ) from error


def _looked_through(
    path: Path, tokens: NDArray[np.uint16], vocabulary: int | None, digest: "hashlib._Hash"
) -> int:
    """The largest token; adds all to a hash."""
    largest = 0
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        digest.update(chunk.data)
        found = int(chunk.max())
        if vocabulary is not None and found >= vocabulary:
            at = start + int(np.argmax(chunk >= vocabulary))
            raise DataError(
                f"{path}: token {tokens[at]} at offset {2 * at}; "
                f"every token must be below vocabulary = {vocabulary}"
            )
        largest = max(largest, found)
    return largest
