"""Adapts residuals and other state to another number of workers.

What N workers still have to send is the mean of their residuals, and for M workers the mean of theirs. It
stays the same if the residuals of workers that leave are added to those of workers that stay, and all are
multiplied by M / N. Workers that join start without residuals. If updates are summed, not averaged, nothing
is multiplied.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ..bucket.feedback import Feedback
from ..bucket.layout import ParameterSlice
from ..thresholds.base import ALL


def model_of(rank: int, former: int) -> int:
    """The former rank whose thresholds and optimizer a worker takes over: its own, if there was one."""
    return rank % former


def share_of(former: int, workers: int, reduction: Literal["mean", "sum"]) -> float:
    """Factor for residuals when the world size changes."""
    return workers / former if reduction == "mean" else 1.0


def ranks_together(ranks: Sequence[Mapping[str, Any]], workers: Sequence[int]) -> list[Mapping[str, Any]]:
    """What each worker saved, in order, from what each process saved by rank, and says how many there were.

    Raises ValueError where some are missing, or they are of several runs.
    """
    together = {int(rank): state for process in ranks for rank, state in process.items()}
    expected = list(range(workers[0])) if workers else []
    if not expected or sorted(together) != expected or len(set(workers)) != 1:
        raise ValueError(
            f"the states of ranks {sorted(together)}; those of {len(expected)} workers are needed"
        )
    return [together[rank] for rank in expected]


def merged(former: Sequence[Mapping[str, Tensor]], share: float) -> dict[str, Tensor]:
    """The residuals that one worker takes over from some: by name, float32 [numel], rounded once.

    A residual that is missing is zero; one that no worker had is missing in the result.
    """
    total: dict[str, Tensor] = {}
    for kept in former:
        for name, tensor in kept.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (share * residual).float() for name, residual in total.items()}


def resharded(
    former: Sequence[Mapping[str, Any]],
    rank: int,
    workers: int,
    reduction: Literal["mean", "sum"],
    shards: Sequence[Collection[str]],
    feedback: Feedback,
    *,
    reduces_shards: bool,
) -> dict[str, Any]:
    """One worker's part of what another number of workers kept, as states of `Feedback` by rank.

    `shards` has the names of the parameters that each shard has elements of; `feedback` is what the worker
    keeps now. Thresholds are those of one former worker; where a parameter is cut, those of its first piece.
    Raises ValueError where some of the former workers reduced shards, and `reduces_shards` says that none
    does now, or the other way round.
    """
    if any("downlink" in state for state in former) != reduces_shards:
        raise ValueError("the states are of another exchange pattern")
    share = share_of(len(former), workers, reduction)
    kept: dict[str, Any] = {
        kind: merged([state[kind] for state in former[rank::workers]], share)
        for kind in ("residuals", "velocities")
    }
    kept |= _memories_of(former[model_of(rank, len(former))], shards)
    if feedback.sums is not None:
        sums = [state["downlink"] for state in former if "downlink" in state]
        for state in sums:
            feedback.sums.require_strides(state)
        kept["downlink"] = _recut(sums, feedback.sums.slices)
    return kept


def _first_memories(saved: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Memories of a parameter's first slice, by name, from those of all slices in order."""
    return {name: memory for memories in reversed(list(saved)) for name, memory in memories.items()}


def _only_of(memories: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The memories of some parameters, and that which all have between them."""
    return {name: memory for name, memory in memories.items() if name in names or name == ALL}


def _memories_of(state: Mapping[str, Any], shards: Sequence[Collection[str]]) -> dict[str, Any]:
    """The memories of a state for other shards of its parameters, by the names in each of these."""
    saved = _first_memories([state["memories"], *state.get("shard_memories", {}).values()])
    if len(shards) == 1:
        return {"memories": saved, "shard_memories": {}}
    cut = {str(number): _only_of(saved, names) for number, names in enumerate(shards)}
    return {"memories": {}, "shard_memories": cut}


def _recut(states: Sequence[Mapping[str, Any]], slices: Mapping[str, ParameterSlice]) -> dict[str, Any]:
    """The state of other slices of the same parameters, from those of all slices in order."""
    state: dict[str, Any] = {
        "memories": _only_of(_first_memories(former["memories"] for former in states), slices)
    }
    for kind in ("residuals", "velocities"):
        wholes: dict[str, Tensor] = {}
        for former in states:
            for name, kept in former[kind].items():
                if name in slices:
                    zeros = torch.zeros(slices[name].whole, dtype=torch.float32, device="cpu")
                    whole = wholes.setdefault(name, zeros)
                    start = former["starts"][name]
                    whole[start : start + kept.numel()] = kept
        state[kind] = {name: whole[slices[name].start : slices[name].stop] for name, whole in wholes.items()}
    return state


def require_same_worker(state: Mapping[str, Any], rank: int, workers: int, otherwise: str = "") -> None:
    """Checks that a state is of this rank and this number of workers.

    Raises ValueError if it is not, with what to do `otherwise` for another number of workers.
    """
    if (state["rank"], state["workers"]) != (rank, workers):
        raise ValueError(
            f"the state of rank {state['rank']} of {state['workers']} workers, this is rank {rank} of "
            f"{workers}: each worker's state belongs to its part of the data"
            + (f"; {otherwise}" if otherwise and state["workers"] != workers else "")
        )
