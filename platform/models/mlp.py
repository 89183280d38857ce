"""Fully connected networks: of any widths, and Strom's acoustic model (2015, section 3.3).

Strom trains his layer by layer first (`training.pretraining`). Without that it learns too: the first weights
are of a size at which signals and gradients of unit variance get through.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from ..spec.models import Activation

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
}


def mlp(
    inputs: int,
    widths: Sequence[int],
    outputs: int,
    activation: Activation,
    *,
    activate_outputs: bool = False,
) -> nn.Sequential:
    """Builds the network of hidden layers of some widths; its weights begin as torch fills them.

    It maps float32 [N, ...] of `inputs` numbers an example to float32 [N, outputs].
    """
    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten())
    for number, (fan_in, fan_out) in enumerate(pairwise([inputs, *widths, outputs]), start=1):
        layers[f"fc{number}"] = nn.Linear(fan_in, fan_out)
        if number <= len(widths) or activate_outputs:
            layers[f"{activation}{number}"] = _ACTIVATIONS[activation]()
    return nn.Sequential(layers)


_SLOPE = 0.25
"""A sigmoid's slope at 0: weights are 1 / _SLOPE times larger to make up for it (Glorot and Bengio 2010)."""
_MIDDLE = 0.5
"""A sigmoid's value at 0; biases remove it from a layer's inputs, whose mean would push it to one side."""


def sigmoid_stack(inputs: int, depth: int, width: int, outputs: int) -> nn.Sequential:
    """Builds the network of `depth` hidden layers of one width.

    It maps float32 [N, ...] of `inputs` numbers an example, of about unit variance, to scores, float32 [N,
    outputs].
    """
    net = mlp(inputs, [width] * depth, outputs, "sigmoid")
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(layers):
        between = 0 < number < depth
        nn.init.normal_(layer.weight, std=(1 / _SLOPE if between else 1) * layer.in_features**-0.5)
        with torch.no_grad():
            layer.bias.copy_(-_MIDDLE * layer.weight.sum(1) if number else torch.zeros_like(layer.bias))
    return net
