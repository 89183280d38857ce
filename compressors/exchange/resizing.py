"""Adapts residuals and other state to another number of workers.

What N workers still have to send is the mean of their residuals, and for M workers the mean of theirs. It
stays the same if the residuals of workers that leave are added to those of workers that stay, and all are
multiplied by M / N. Workers that join start without residuals. If updates are summed, not averaged, nothing
is multiplied.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from .pieces import Shard

State = dict[str, Any]
Tensors = Mapping[str, Tensor]
_TENSORS = ("residuals", "velocities")


@dataclass(frozen=True)
class Ranges:
    """The ranges of a worker's compressors, for some number of workers."""

    own: Sequence[Shard]
    """Of each that keeps what this worker owes, in their order."""
    returned: Sequence[Sequence[Shard]]
    """By worker, of each that keeps what it, as their owner, owes to all."""


def home(former: int, workers: int) -> int:
    """Which worker takes over what a former one has kept: the same one, if it is still there."""
    return former % workers


def model_of(rank: int, former: int) -> int:
    """After which former worker's thresholds and optimizer a worker goes on: its own, if it was there."""
    return rank % former


def share_of(former: int, workers: int, reduction: Literal["mean", "sum"]) -> float:
    """How many times what was owed is owed by another number of workers."""
    return workers / former if reduction == "mean" else 1.0


def ranks_together(ranks: Sequence[Mapping[str, Any]], workers: Sequence[int]) -> list[Mapping[str, Any]]:
    """What each of a number of workers saved, in order, of what their processes saved.

    Args:
        ranks: by process, what each of its workers saved, by rank.
        workers: by process, how many it says there were.

    Raises:
        ValueError: some are missing, or they are of several runs.
    """
    together = {int(rank): each for of_process in ranks for rank, each in of_process.items()}
    expected = list(range(workers[0])) if workers else []
    if not expected or sorted(together) != expected or len(set(workers)) != 1:
        raise ValueError(
            f"the states of ranks {sorted(together)}; those of {len(expected)} workers are needed"
        )
    return [together[rank] for rank in expected]


def merged(former: Sequence[Tensors], workers: int, share: float) -> list[dict[str, Tensor]]:
    """The residuals of each of the new workers.

    Args:
        former: by worker and name, float32 [numel]; what is missing is zero.
        workers: how many there are now, at least 1.
        share: see `share_of`.

    Returns:
        By worker and name, float32 [numel], rounded once; nothing for what nobody owed.
    """
    sums: list[dict[str, Tensor]] = [{} for _ in range(workers)]
    for rank, kept in enumerate(former):
        total = sums[home(rank, workers)]
        for name, tensor in kept.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return [{name: (share * each).float() for name, each in total.items()} for total in sums]


def resized(
    former: Sequence[Mapping[str, Any]],
    before: Ranges,
    after: Ranges,
    names: Sequence[str],
    sizes: Sequence[int],
    share: float,
) -> list[State]:
    """The states of patterns' compressors.

    Args:
        former: each worker's, as `Pattern.state_dict` gave it.
        before: what those compressors are about.
        after: likewise for the new workers.
        names: of the parameters.
        sizes: their elements.
        share: see `share_of`.

    Returns:
        One for each of the new workers, for `Pattern.load_state_dict`.

    Raises:
        KeyError, RuntimeError: the states are of other parameters or compressors.
    """
    workers, owns = len(after.returned), len(before.own)
    own, returned = {}, {}
    for part in _TENSORS:
        kept = [owed(state, before, names, sizes, part) for state in former]
        own[part] = merged(kept, workers, share)
        pairs = [
            (shard, state[str(owns + i)][part])
            for state, shards in zip(former, before.returned, strict=True)
            for i, shard in enumerate(shards)
        ]
        returned[part] = _whole(pairs, names, sizes)
    of_owners = _memories([state[key] for state in former for key in state if int(key) >= owns])
    states = []
    for rank in range(workers):
        mine = {part: by_worker[rank] for part, by_worker in own.items()}
        model = former[model_of(rank, len(former))]
        memories = _memories([model[str(i)] for i in range(owns)])
        cuts = [_cut_out(mine, memories, shard, names) for shard in after.own]
        cuts += [_cut_out(returned, of_owners, shard, names) for shard in after.returned[rank]]
        states.append({str(i): each for i, each in enumerate(cuts)})
    return states


def owed(
    state: Mapping[str, Any],
    ranges: Ranges,
    names: Sequence[str],
    sizes: Sequence[int],
    part: str = "residuals",
) -> dict[str, Tensor]:
    """What one worker's compressors keep of its own, by parameter, float32 [numel]; see `resized`."""
    pairs = [(shard, state[str(i)][part]) for i, shard in enumerate(ranges.own)]
    return _whole(pairs, names, sizes)


def _whole(
    pieces: Sequence[tuple[Shard, Tensors]], names: Sequence[str], sizes: Sequence[int]
) -> dict[str, Tensor]:
    """Tensors of whole parameters, flat, from those of shards' pieces; zeros where nothing was kept."""
    whole: dict[str, Tensor] = {}
    for shard, kept in pieces:
        for piece in shard.pieces:
            name = names[piece.ordinal]
            if name in kept:
                if name not in whole:
                    whole[name] = torch.zeros(sizes[piece.ordinal])
                whole[name][piece.start : piece.stop] = kept[name]
    return whole


def _memories(states: Sequence[Mapping[str, Any]]) -> State:
    """Of some compressors together; where a parameter is cut, those of its first piece."""
    memories: State = {}
    for state in states:
        memories = {**state["memories"], **memories}
    return memories


def _cut_out(whole: Mapping[str, Tensors], memories: State, shard: Shard, names: Sequence[str]) -> State:
    """A compressor's state for a shard."""
    cut_out: State = {
        part: {
            names[piece.ordinal]: tensors[names[piece.ordinal]][piece.start : piece.stop].clone()
            for piece in shard.pieces
            if names[piece.ordinal] in tensors
        }
        for part, tensors in whole.items()
    }
    here = {names[ordinal] for ordinal in shard.ordinals}
    kept = {name: dict(each) for name, each in memories.items() if name in here or name not in names}
    return {**cut_out, "memories": kept}
