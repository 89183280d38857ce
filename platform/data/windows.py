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
    """Training windows, side by side. Each epoch cuts them at other places.

    Example i of an epoch begins at i * context + shift. The shift, in 0..context - 1, follows from the run's
    seed and the epoch; without a `Draw` it is 0.
    """

    def __init__(self, tokens: TokenRow, context: int, name: str) -> None:
        """Takes tokens [T], the length of a window, and what the tokens are called in messages.

        Raises:
            DataError: there are fewer than two windows' tokens.
        """
        if len(tokens) < 2 * context:
            raise DataError(
                f"{name}: holds {len(tokens)} tokens; "
                f"windows of context = {context} need {2 * context} at least"
            )
        self._tokens, self._context = tokens, context

    def __len__(self) -> int:
        return len(self._tokens) // self._context - 1

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Examples.batch`: int64 [n, context], and the tokens that follow, int64 [n, context]."""
        # The random numbers of an example that is not there: those of the others stay theirs.
        shift = 0 if draw is None else int(draw.of(len(self)).integers(self._context))
        return _cut(self._tokens, indices * self._context + shift, self._context)


class SpacedWindows(Examples):
    """Some of a test part's windows, the same at every evaluation."""

    def __init__(self, tokens: TokenRow, context: int, most: int, name: str) -> None:
        """Takes tokens [T], the length of a window, how many to use at most, and a name for messages.

        Raises:
            DataError: there is not one window.
        """
        whole = (len(tokens) - 1) // context
        if whole < 1:
            raise DataError(
                f"{name}: holds {len(tokens)} tokens; a window of context = {context} needs {context + 1}"
            )
        self._tokens, self._context = tokens, context
        self._chosen = evenly_spaced(whole, most)

    def __len__(self) -> int:
        return len(self._chosen)

    def batch(self, indices: NDArray[np.int64], draw: Draw | None) -> Pair:
        """See `Windows.batch`; nothing is drawn."""
        return _cut(self._tokens, self._chosen[indices] * self._context, self._context)


def evenly_spaced(count: int, most: int) -> NDArray[np.int64]:
    """Some of 0..count-1 at equal distances, int64 [min(count, most)], ascending; the first is 0."""
    chosen = min(count, most)
    return np.arange(chosen, dtype=np.int64) * count // chosen


def _cut(tokens: TokenRow, starts: NDArray[np.int64], context: int) -> Pair:
    """Windows and what follows, int64 [n, context] each; only these are read."""
    cut = tokens[starts[:, np.newaxis] + np.arange(context + 1)].astype(np.int64)
    return torch.from_numpy(cut[:, :-1].copy()), torch.from_numpy(cut[:, 1:].copy())
