"""Adapts the workers' saved state to another number of workers.

The optimizers' state of the fully connected layers moves with the neurons. For the convolutions, every
residual still has to be sent: that of a worker, and what the owner of a range has not sent back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..pieces import Shard, cut
from .layers import Layer

_TENSORS = ("residuals", "velocities")
State = dict[str, Any]


@dataclass(frozen=True)
class Resharded:
    """The states of all former workers, by rank."""

    optimizers: Sequence[Mapping[str, Any]]
    patterns: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    """Of the convolutional part's parameters."""
    sizes: Sequence[int]
    """Their elements."""

    @classmethod
    def of(
        cls, states: Sequence[Mapping[str, Any]], names: Sequence[str], sizes: Sequence[int]
    ) -> "Resharded":
        """Combines the processes' states.

        Args:
            states: each process's, as `HybridTraining.own_state` gave it.
            names: of the convolutional part's parameters.
            sizes: their elements.

        Raises:
            ValueError: they are not those of all workers of a run.
        """
        patterns: dict[int, Mapping[str, Any]] = {}
        optimizers: dict[int, Mapping[str, Any]] = {}
        for state in states:
            patterns |= {int(rank): each for rank, each in state["patterns"]["ranks"].items()}
            optimizers |= {int(rank): each for rank, each in state["optimizers"].items()}
        workers = int(states[0]["patterns"]["workers"]) if states else 0
        expected = list(range(workers))
        if not workers or sorted(patterns) != expected or sorted(optimizers) != expected:
            raise ValueError(f"the states of ranks {sorted(patterns)}; those of {workers} workers are needed")
        in_order = [optimizers[rank] for rank in expected], [patterns[rank] for rank in expected]
        return cls(*in_order, list(names), list(sizes))

    def optimizer(self, layers: Sequence[Layer], fresh: Mapping[str, Any]) -> State:
        """An optimizer's state for a new worker's neurons.

        Args:
            layers: the new worker's.
            fresh: the state of its optimizer, of which the settings are taken.
        """
        own = [layer.own for layer in layers for _ in layer.parameters()]
        state: dict[int, Any] = {}
        for number, neurons in enumerate(own):
            former = [each["state"].get(number, {}) for each in self.optimizers]
            state[number] = {
                key: _rows([each[key] for each in former], neurons.start, neurons.stop) for key in former[0]
            }
        return {"state": {number: each for number, each in state.items() if each}, **_groups(fresh)}

    def pattern(self, rank: int, workers: int) -> State:
        """The state of a new worker's side of the convolutions' synchronization."""
        former, shards = len(self.patterns), cut(self.sizes, len(self.patterns))
        out = [
            {
                part: self._whole([(shard, pattern[str(i)][part]) for i, shard in enumerate(shards)])
                for part in _TENSORS
            }
            for pattern in self.patterns
        ]
        mean = {part: _mean([each[part] for each in out]) for part in _TENSORS}
        owners = list(enumerate(shards))
        back = {
            part: self._whole([(shard, self.patterns[i][str(former)][part]) for i, shard in owners])
            for part in _TENSORS
        }
        new = cut(self.sizes, workers)
        states = [self._cut(mean, shard, self.patterns[0]["0"]["memories"]) for shard in new]
        states.append(self._cut(back, new[rank], self.patterns[0][str(former)]["memories"]))
        return {str(number): each for number, each in enumerate(states)}

    def _whole(self, pieces: Sequence[tuple[Shard, Mapping[str, Tensor]]]) -> dict[str, Tensor]:
        """Tensors of whole parameters, flat, from those of shards' pieces; zeros where nothing was kept."""
        whole: dict[str, Tensor] = {}
        for shard, kept in pieces:
            for piece in shard.pieces:
                name = self.names[piece.ordinal]
                if name in kept:
                    if name not in whole:
                        whole[name] = torch.zeros(self.sizes[piece.ordinal])
                    whole[name][piece.start : piece.stop] = kept[name]
        return whole

    def _cut(self, whole: Mapping[str, Mapping[str, Tensor]], shard: Shard, memories: Any) -> State:
        """A compressor's state for a shard; thresholds continue from the first worker's first shard."""
        cut_out: State = {
            part: {
                name: tensors[name][piece.start : piece.stop].clone()
                for name, piece in ((self.names[each.ordinal], each) for each in shard.pieces)
                if name in tensors
            }
            for part, tensors in whole.items()
        }
        here = {self.names[ordinal] for ordinal in shard.ordinals}
        kept = {name: dict(each) for name, each in memories.items() if name in here or name not in self.names}
        return {**cut_out, "memories": kept}


def _rows(values: Sequence[Any], start: int, stop: int) -> Any:
    """Some rows of the workers' concatenated tensors; tensors without rows are the same on all workers."""
    first = values[0]
    if not isinstance(first, Tensor) or not first.dim():
        return first
    return torch.cat(list(values))[start:stop].clone()


def _groups(fresh: Mapping[str, Any]) -> State:
    return {key: each for key, each in fresh.items() if key != "state"}


def _mean(of_workers: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """By parameter, the mean over all workers, including those that kept nothing."""
    names = {name for each in of_workers for name in each}
    return {
        name: (
            torch.stack([each[name].double() for each in of_workers if name in each]).sum(0) / len(of_workers)
        ).float()
        for name in sorted(names)
    }
