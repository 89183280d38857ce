"""Files of tokens: nanoGPT's (16 bits each, little-endian, no header), or NumPy's, which tell their type."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..spec.data import MOST_TOKENS, Tokens
from .errors import DataError, mapped, reading
from .examples import Draw, Examples, Pair, Parts, evenly_spaced
from .shape import Shape

TokenRow = NDArray[np.integer[Any]]
"""[tokens], usually mapped from a file."""


class Windows(Examples):
    """Windows of one length. With a `Draw` all of them move on by as much, each epoch by another number.

    The shift, in 0..context - 1, follows from the run's seed and the epoch.
    """

    def __init__(self, tokens: TokenRow, context: int, chosen: NDArray[np.int64]) -> None:
        """Takes tokens [T], the length of a window, and which windows there are, side by side from 0."""
        self._tokens, self._context, self._chosen = tokens, context, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`: int64 [n, context], and the tokens that follow, int64 [n, context]."""
        # The random numbers of an example that is not there: those of the others stay theirs.
        shift = 0 if draw is None else int(draw.of(len(self)).integers(self._context))
        starts = self._chosen[indices] * self._context + shift
        cut = self._tokens[starts[:, np.newaxis] + np.arange(self._context + 1)].astype(np.int64)
        return torch.from_numpy(cut[:, :-1].copy()), torch.from_numpy(cut[:, 1:].copy())


def training_windows(tokens: TokenRow, context: int, name: str) -> Windows:
    """All windows that can move on; raises DataError where there are fewer than two windows' tokens."""
    if len(tokens) < 2 * context:
        raise DataError(
            f"{name}: holds {len(tokens)} tokens; windows of context = {context} need {2 * context} at least"
        )
    return Windows(tokens, context, np.arange(len(tokens) // context - 1, dtype=np.int64))


def spaced_windows(tokens: TokenRow, context: int, most: int, name: str) -> Windows:
    """Some of a test part's windows, the same at every evaluation; raises DataError where there are none."""
    whole = (len(tokens) - 1) // context
    if whole < 1:
        raise DataError(
            f"{name}: holds {len(tokens)} tokens; a window of context = {context} needs {context + 1}"
        )
    return Windows(tokens, context, evenly_spaced(whole, most))


_CHUNK = 1 << 24
"""Tokens that are looked at together; an even number."""
_NPY = b"\x93NUMPY"
_OTHERS = {
    b"\x1f\x8b\x08\x00": "compressed by gzip",
    b"\x1f\x8b\x08\x08": "compressed by gzip",
    b"PK\x03\x04": "a zip archive, as of np.savez or torch.save",
    (20240520).to_bytes(4, "little"): "a file of llm.c, with a header of 1,024 bytes",
    (20240801).to_bytes(4, "little"): "a file of llm.c, with a header of 1,024 bytes",
}
"""By how they begin."""
_WIDER = 256
"""How many times smaller upper halves of tokens of 32 or 64 bits are than lower ones, on average."""
_SAMPLE = 1 << 20
"""Tokens whose bytes are compared; of fewer than a thousandth of that nothing can be said."""
_ALIKE = 0.1
"""The total variation of low and high bytes is larger if tokens have 16 bits."""
_ADVICE = "save such tokens with numpy.save, whose header tells their type, as train.npy and val.npy"


def load_tokens(config: Tokens) -> Parts:
    """Maps a folder's `train.bin` and `val.bin`, or `train.npy` and `val.npy`, as windows of tokens.

    Both are read once, for their hash and their largest token. Raises DataError: a file is missing, of
    another form, holds half a token, too few, or one beyond the vocabulary.
    """
    digest = hashlib.sha256()
    names = [_found(config.path, part) for part in ("train", "val")]
    parts = [_mapped(name) for name in names]
    if config.vocabulary is None:
        for name, part in zip(names, parts, strict=True):
            _check_form(name, part)
    largest = max(
        _looked_through(*pair, config.vocabulary, digest) for pair in zip(names, parts, strict=True)
    )
    vocabulary = config.vocabulary or largest + 1
    return Parts(
        training_windows(parts[0], config.context, str(names[0])),
        spaced_windows(parts[1], config.context, config.test_examples, str(names[1])),
        Shape.text(config.context, vocabulary),
        digest.hexdigest(),
    )


def _found(folder: Path, part: str) -> Path:
    raw, headed = folder / f"{part}.bin", folder / f"{part}.npy"
    if raw.exists() and headed.exists():
        raise DataError(f"{headed}: lies beside {raw.name}; keep one of them")
    return headed if headed.exists() else raw


def _mapped(path: Path) -> TokenRow:
    expected = "expected tokens of 16 bits, as nanoGPT's prepare.py writes them to train.bin and val.bin, or "
    with reading(path, f"{expected}train.npy and val.npy"), path.open("rb") as file:
        size, begin = path.stat().st_size, file.read(len(_NPY))
    if begin == _NPY or path.suffix == ".npy":
        return mapped(
            path, lambda array: array.dtype.kind in "iu" and array.ndim == 1, "integers with 1 dimension"
        )
    if begin[:4] in _OTHERS:
        raise DataError(f"{path}: is {_OTHERS[begin[:4]]}; expected nothing but tokens of 16 bits; {_ADVICE}")
    if size % 2:
        raise DataError(f"{path}: holds {size} bytes; a token has 2, so half a token is at offset {size - 1}")
    if size == 0:
        raise DataError(f"{path}: is empty; expected tokens of 16 bits")
    return np.memmap(path, "<u2", "r")


def _check_form(path: Path, tokens: TokenRow) -> None:
    """Refuses raw files whose first tokens are hardly of 16 bits, low byte first; raises DataError.

    In tokens of a text, the low bytes are spread over all values, and the high bytes are mostly small.
    """
    if not isinstance(tokens, np.memmap) or tokens.offset or len(tokens) < _SAMPLE >> 10:
        return
    first = np.asarray(tokens[:_SAMPLE])
    low, high = first & 0xFF, first >> 8
    differences = np.bincount(low, minlength=256) - np.bincount(high, minlength=256)
    problem = ""
    if min(low.min(), high.min()) >= ord("\t") or np.abs(differences).sum() / 2 < _ALIKE * len(first):
        problem = "its even and odd bytes are alike, as in text, tokens of 8 bits and compressed files"
    elif high.mean() > low.mean() and first.byteswap().max() < first.max():
        problem = "its numbers look like tokens of 16 bits with the high byte first"
    if problem:
        raise DataError(
            f"{path}: {problem}; expected tokens of 16 bits, the low byte first; "
            "if they are that, say how many there are with data.vocabulary"
        )


def _looked_through(path: Path, tokens: TokenRow, vocabulary: int | None, digest: "hashlib._Hash") -> int:
    """The largest token; adds all to a hash."""
    below = vocabulary or MOST_TOKENS
    start_of_all = tokens.offset if isinstance(tokens, np.memmap) else 0  # behind a header
    largest, sums = 0, [0, 0]
    for start in range(0, len(tokens), _CHUNK):
        chunk = tokens[start : start + _CHUNK]
        digest.update(chunk.data)
        sums = [sums[i] + int(chunk[i::2].sum(dtype=np.int64)) for i in (0, 1)]
        wrong = (chunk >= below) | (chunk < 0)
        if wrong.any():
            at = start + int(np.argmax(wrong))
            limit = f"vocabulary = {below}" if vocabulary else f"{below}, the largest vocabulary"
            raise DataError(
                f"{path}: token {tokens[at]} at offset {start_of_all + tokens.itemsize * at}; "
                f"every token must be below {limit}{', and none negative' if tokens[at] < 0 else ''}"
            )
        largest = max(largest, int(chunk.max()))
    if start_of_all == 0 and min(sums) * _WIDER < max(sums):
        raise DataError(
            f"{path}: every second number of 16 bits is about 0, as in tokens of 32 or 64 bits; {_ADVICE}"
        )
    return largest
