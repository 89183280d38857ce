"""One worker's side of the model-parallel layers: the forward and backward pass of some examples (section 3).

Each worker computes its own neurons of every layer. In the forward pass it needs the outputs of all neurons
of the layer before, so the workers gather them. In the backward pass each worker has a part of the gradient
with respect to these outputs; each worker adds up the parts for its own neurons. All workers have all scores,
and compute the same loss.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor, nn

from taugrad.compressors.spans import RECORDER

from ...tasks.base import Task
from .dropout import Examples
from .layers import Layer
from .moves import Moves, Post, fetched
from .wire import Wire, nothing


class FullyConnected:
    """A worker's layers, and its exchanges with the others."""

    def __init__(
        self,
        layers: nn.ModuleList,
        task: Task,
        wire: Wire,
        rank: int,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Takes charge.

        Args:
            layers: as `share_of` gives them.
            task: has the loss.
            wire: how activations travel.
            rank: the worker's.
            autocast: entered for the forward pass.
        """
        self.layers = [cast(Layer, each) for each in layers]
        self._task, self._wire, self._rank, self._autocast = task, wire, rank, autocast
        self._workers = len(self.layers[0].dealt)

    def learn(
        self,
        features: Tensor,
        targets: Tensor,
        examples: Examples,
        factor: float,
        channels: Iterator[int],
    ) -> Moves[tuple[float, Tensor]]:
        """Forward and backward; gradients are added to those of the layers' parameters.

        Args:
            features: [m, inputs of the first layer], m at least 1.
            targets: [m, ...]
            examples: whose they are.
            factor: what the mean loss is multiplied by.
            channels: numbers that were not used in this iteration.

        Returns:
            The examples' mean loss, and [m, features], this worker's part of the loss's gradient with respect
            to the features: that of its neurons in the first layer. All workers' parts add up to the whole.
        """
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        whole = features
        for layer in self.layers:
            with RECORDER.computing("forward", "fc"):
                inputs.append(whole.detach().requires_grad_())
                with self._autocast():
                    outputs.append(layer(inputs[-1], examples).to(whole.dtype))
            whole = yield from self._gathered(outputs[-1].detach(), layer.dealt, next(channels))
        with RECORDER.computing("backward", "loss"):
            scores = whole.requires_grad_()
            mean = self._task.loss(scores, targets)
            torch.autograd.backward(factor * mean)
            assert scores.grad is not None
            own = self.layers[-1].own
            gradient = scores.grad[:, own.start : own.stop]
        while True:
            with RECORDER.computing("backward", "fc"):
                torch.autograd.backward(outputs.pop(), gradient)
                part = inputs.pop().grad
            assert part is not None
            if not inputs:
                return mean.item(), part
            gradient = yield from self._summed(part, self.layers[len(inputs) - 1].dealt, next(channels))

    def _gathered(self, own: Tensor, dealt: Sequence[range], channel: int) -> Moves[Tensor]:
        """The outputs of all neurons, [m, neurons], gathered from each worker's [m, own neurons]."""
        rows = len(own)
        sizes = [rows * len(neurons) * self._wire.nbytes for neurons in dealt]
        yield Post.to_everybody(channel, "neurons", self._rank, self._wire.pack(own), sizes, values=True)
        received = yield from fetched(channel)
        whole = own.new_empty(rows, dealt[-1].stop)
        for rank, neurons in enumerate(dealt):
            columns = whole[:, neurons.start : neurons.stop]
            if rank == self._rank:
                columns.copy_(self._wire.as_received(own))
            elif neurons:
                columns.copy_(self._wire.unpack(received[rank], columns.shape, own))
        return whole

    def _summed(self, part: Tensor, dealt: Sequence[range], channel: int) -> Moves[Tensor]:
        """The gradient [m, own neurons]: the sum of every worker's part [m, neurons], in rank order."""
        rows, own = len(part), dealt[self._rank]
        lengths = nothing(self._workers)
        for sender in range(self._workers):
            for receiver, neurons in enumerate(dealt):
                if sender != receiver:
                    lengths[sender, receiver] = rows * len(neurons) * self._wire.nbytes
        to = {
            rank: self._wire.pack(part[:, neurons.start : neurons.stop])
            for rank, neurons in enumerate(dealt)
            if rank != self._rank and neurons
        }
        yield Post(channel, "neurons' gradients", to, lengths, to_all=False, counts_as_values=True)
        received = yield from fetched(channel)
        parts = {rank: self._wire.unpack(each, (rows, len(own)), part) for rank, each in received.items()}
        parts[self._rank] = self._wire.as_received(part[:, own.start : own.stop])
        return added(parts, part.new_zeros(rows, len(own)))


def added(parts: dict[int, Tensor], total: Tensor) -> Tensor:
    """Adds up what workers sent, from zeros and in rank order, so that all workers get the same bits."""
    for rank in sorted(parts):
        total += parts[rank]
    return total
