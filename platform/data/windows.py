"""Windows of a long row of tokens, to be told the next token at each position."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .errors import DataError
from .examples import Draw, Examples, Pair

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


def evenly_spaced(count: int, most: int) -> NDArray[np.int64]:
    """Some of 0..count-1 at equal distances, int64 [min(count, most)], ascending; the first is 0."""
    chosen = min(count, most)
    return np.arange(chosen, dtype=np.int64) * count // chosen
