"""One worker's side of the model-parallel layers: the forward and backward pass of some examples (section 3).

Each worker computes its own neurons of every layer. In the forward pass it needs the outputs of all neurons
of the layer before, so the workers gather them. In the backward pass each worker has a part of the gradient
with respect to these outputs; each worker adds up the parts for its own neurons. All workers have all scores,
and compute the same loss.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from taugrad.compressors.spans import RECORDER

from ...tasks.base import Task
from .exchange import Coroutine, Exchange, added
from .layers import ExampleRows, Layer


def learn(
    layers: Sequence[Layer],
    task: Task,
    autocast: Callable[[], AbstractContextManager[object]],
    exchange: Exchange,
    features: Tensor,
    targets: Tensor,
    examples: ExampleRows,
    factor: float,
) -> Coroutine[tuple[float, Tensor]]:
    """Forward and backward; gradients are added to those of the layers' parameters.

    Of features [m, inputs of the first layer], m at least 1, and targets [m, ...]. `layers` are this
    worker's, as `share_of` gives them; `autocast` is entered for the forward pass; the mean loss is
    multiplied by `factor`.

    Returns the examples' mean loss, and [m, features], this worker's part of the loss's gradient with respect
    to the features: that of its neurons in the first layer. All workers' parts add up to the whole.
    """
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    whole = features
    for layer in layers:
        with RECORDER.computing("forward", "fc"):
            inputs.append(whole.detach().requires_grad_())
            with autocast():
                outputs.append(layer(inputs[-1], examples).to(whole.dtype))
        shapes = [(len(features), len(neurons)) for neurons in layer.dealt]
        pending = exchange.to_all("neurons", outputs[-1].detach(), shapes)
        whole = torch.cat((yield from exchange.taken(pending)), dim=1)
    with RECORDER.computing("backward", "loss"):
        scores = whole.requires_grad_()
        mean = task.loss(scores, targets)
        torch.autograd.backward(factor * mean)
        assert scores.grad is not None
        held = layers[-1].held
        gradient = scores.grad[:, held.start : held.stop]
    while True:
        with RECORDER.computing("backward", "fc"):
            torch.autograd.backward(outputs.pop(), gradient)
            part = inputs.pop().grad
        assert part is not None
        if not inputs:
            return mean.item(), part
        dealt = layers[len(inputs) - 1].dealt
        parts = [part[:, neurons.start : neurons.stop] for neurons in dealt]
        gradient = added((yield from exchange.taken(exchange.to_owners("neurons' gradients", parts))))
