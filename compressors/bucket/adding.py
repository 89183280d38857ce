"""Updates into dense arrays."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..ops.cpu import minifloat, sparse, summing
from ..wire.quantized import Quantized
from ..wire.update import Update
from .layout import Unit


def add_to(update: Update, dense: NDArray[np.float32]) -> None:
    """Adds an update to a contiguous float32 [n] array."""
    if update.words is None:
        if isinstance(update.values, Quantized):
            update.values.write_to(dense, add=True)
        elif update.form == "fp16" or update.form == "bf16":  # noqa: PLR1714 (mypy narrows by this form alone)
            minifloat.half_values(update.form, update.values, dense, add=True)
        else:
            dense += update.floats()
    elif update.form in ("bgt", "strom"):
        sparse.add_taus(update.words, update.tau, dense)
    elif update.form == "qgt":
        sparse.add_levels(update.words, update.values, update.tau, dense)
    elif update.k:
        sparse.add_values(update.words, update.floats(), dense)


def sum_sparse(updates: Sequence[tuple[Update, Unit]], divisor: float, total: NDArray[np.float32]) -> None:
    """Fills a bucket, float32 [bucket elements], with the sum of sparse updates over a divisor.

    The same as zeros, to which updates are added in this order, divided: in one pass over the bucket.
    """
    kept = [(update, unit) for update, unit in updates if update.k]
    if not kept:
        total[:] = 0
        return
    kinds = [_KINDS.get(update.form, summing.VALUES) for update, _ in kept]
    counts = [update.k for update, _ in kept]
    summing.sum_updates(
        np.array(kinds, np.int64),
        np.cumsum(counts),
        np.array([unit.base for _, unit in kept], np.int64),
        np.array([update.tau for update, _ in kept], np.float32),
        np.concatenate([update.words for update, _ in kept]),
        _beside(kept, kinds, summing.LEVELS, np.uint8),
        _beside(kept, kinds, summing.VALUES, np.float32),
        np.float32(divisor),
        total,
    )


_KINDS = {"bgt": summing.TAUS, "strom": summing.TAUS, "qgt": summing.LEVELS}


def _beside(
    updates: Sequence[tuple[Update, Unit]], kinds: Sequence[int], kind: int, dtype: type[np.generic]
) -> NDArray[np.generic]:
    """What stands beside the words of updates of a kind; as long as all words, unless there is none."""
    if kind not in kinds:
        return np.empty(0, dtype)
    pieces = []
    for (update, _), each in zip(updates, kinds, strict=True):
        if each != kind:
            pieces.append(np.empty(update.k, dtype))
        else:
            pieces.append(update.values if kind == summing.LEVELS else update.floats())  # type: ignore[arg-type]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
