"""Finds the checkpoint that a run continues from: the newest good one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from .manifest import CheckpointError, Unfinished, Unusable

T = TypeVar("T")


def folder_name(iteration: int) -> str:
    """Of the checkpoint after an iteration; names sort as iterations do."""
    return f"iteration_{iteration:08d}"


@dataclass(frozen=True)
class Choice(Generic[T]):
    """What was found."""

    good: T | None
    """What an attempt came to; None: there is no checkpoint yet."""
    iteration: int
    """Of it; 0 where there is none."""
    skipped: list[str]
    """Newer ones, each with what is wrong with it."""


def newest_good(iterations: Iterable[int], attempt: Callable[[int], T]) -> Choice[T]:
    """Tries checkpoints until one is good.

    Args:
        iterations: of the checkpoints, the newest first.
        attempt: reads one; raises Unusable.

    Returns:
        The first good one. None, where there was at most the beginning of a first one.

    Raises:
        CheckpointError: there are checkpoints, and none is good.
    """
    skipped: list[str] = []
    whole = 0
    for iteration in iterations:
        try:
            return Choice(attempt(iteration), iteration, skipped)
        except Unusable as error:
            skipped.append(f"{folder_name(iteration)}: {error}")
            whole += not isinstance(error, Unfinished)
    if whole or len(skipped) > 1:
        raise CheckpointError(f"no good checkpoint is left: {'; '.join(skipped)}. Nothing was deleted")
    return Choice(None, 0, skipped)
