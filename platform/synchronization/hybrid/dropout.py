"""Dropout masks that do not depend on who computes them: counter-based random numbers.

A worker has some of a layer's neurons, for the examples of a turn. Whether a neuron is dropped must not
depend on how neurons and examples are distributed over the workers. So it is a function of seed, iteration,
layer, example and neuron, not the next number of a generator. The function is that of SplitMix64 (Steele, Lea
and Flood 2014, "Fast splittable pseudorandom number generators"), whose state is a counter.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_BITS = 53
"""Of a number that are compared with p."""


def _signed(word: int) -> int:
    """The int64 with the bits of a 64-bit word."""
    word &= 2**64 - 1
    return word - 2**64 if word >> 63 else word


def _shifted(words: Tensor, by: int) -> Tensor:
    """A logical shift to the right; torch's is arithmetic."""
    return (words >> by) & ((1 << (64 - by)) - 1)


def _mixed(words: Tensor) -> Tensor:
    """SplitMix64's output function, of int64 read as 64-bit words; products wrap."""
    words = (words ^ _shifted(words, 30)) * _signed(_FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(_SECOND)
    return words ^ _shifted(words, 31)


def _drawn(key: Tensor, numbers: Tensor) -> Tensor:
    """The streams' outputs at some places, counted from 0."""
    return _mixed(key + (numbers + 1) * _signed(_GOLDEN))


@dataclass(frozen=True)
class ExampleRows:
    """Which examples are computed, for masks."""

    seed: int
    """The run's."""
    iteration: int
    """Counted from 0 over the run."""
    rows: Tensor
    """int64 [m], places in the whole batch."""

    def kept(self, layer: int, p: float, start: int, stop: int) -> Tensor:
        """Which neurons from `start` to `stop` stay, each dropped with probability p: bool [m, stop - start].

        `layer` is the dropout's number among the model's. The result is on the rows' device.
        """
        device = self.rows.device
        key = torch.zeros((), dtype=torch.int64, device=device)
        for number in (self.seed, self.iteration, layer):
            key = _drawn(key, torch.tensor(number, device=device))
        of_rows = _drawn(key, self.rows)[:, None]
        words = _drawn(of_rows, torch.arange(start, stop, device=device)[None, :])
        return _shifted(words, 64 - _BITS) >= int(p * 2**_BITS)


def dropped(inputs: Tensor, kept: Tensor, p: float) -> Tensor:
    """Inputs [m, n] without what is not kept, the others divided by 1 - p as `nn.Dropout` does."""
    return inputs * kept.to(inputs.dtype) * (1 / (1 - p) if p < 1 else 0.0)
