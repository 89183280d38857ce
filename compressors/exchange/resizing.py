"""Adapts residuals and other state to another number of workers.

What N workers still have to send is the mean of their residuals, and for M workers the mean of theirs. It
stays the same if the residuals of workers that leave are added to those of workers that stay, and all are
multiplied by M / N. Workers that join start without residuals. If updates are summed, not averaged, nothing
is multiplied.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor


def model_of(rank: int, former: int) -> int:
    """After which former worker's thresholds and optimizer a worker goes on: its own, if it was there."""
    return rank % former


def share_of(former: int, workers: int, reduction: Literal["mean", "sum"]) -> float:
    """How many times what was owed is owed by another number of workers."""
    return workers / former if reduction == "mean" else 1.0


def ranks_together(ranks: Sequence[Mapping[str, Any]], workers: Sequence[int]) -> list[Mapping[str, Any]]:
    """What each worker saved, in order, from what each process saved by rank, and says how many there were.

    Raises ValueError where some are missing, or they are of several runs.
    """
    together = {int(rank): each for of_process in ranks for rank, each in of_process.items()}
    expected = list(range(workers[0])) if workers else []
    if not expected or sorted(together) != expected or len(set(workers)) != 1:
        raise ValueError(
            f"the states of ranks {sorted(together)}; those of {len(expected)} workers are needed"
        )
    return [together[rank] for rank in expected]


def merged(former: Sequence[Mapping[str, Tensor]], workers: int, share: float) -> list[dict[str, Tensor]]:
    """The residuals of each of the new workers: by name, float32 [numel], rounded once.

    What is missing of the former ones is zero; there is nothing for what nobody owed.
    """
    sums: list[dict[str, Tensor]] = [{} for _ in range(workers)]
    for rank, kept in enumerate(former):
        total = sums[rank % workers]  # the same worker, if it is still there
        for name, tensor in kept.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return [{name: (share * each).float() for name, each in total.items()} for total in sums]


def require_same_worker(state: Mapping[str, Any], rank: int, workers: int, otherwise: str = "") -> None:
    """Checks that a state is of this rank and this number of workers.

    Raises ValueError if it is not, with what to do `otherwise` for another number of workers.
    """
    if (state["rank"], state["workers"]) != (rank, workers):
        raise ValueError(
            f"the state of rank {state['rank']} of {state['workers']} workers, this is rank {rank} of "
            f"{workers}: each worker's residual belongs to its part of the data"
            + (f"; {otherwise}" if otherwise and state["workers"] != workers else "")
        )
