"""Strom's acoustic model (2015, section 3.3): a stack of fully connected layers with sigmoids.

Strom trains it layer by layer first (`training.pretraining`). Without that it learns too: the first weights
are of a size at which signals and gradients of unit variance get through.
"""

import torch
from torch import nn

from .mlp import mlp

_SLOPE = 0.25
"""Of a sigmoid at 0: weights are 1 / _SLOPE times larger to make up for it (Glorot and Bengio 2010)."""
_MIDDLE = 0.5
"""Of a sigmoid at 0; a layer's biases take it away from its inputs, whose mean would push it to one side."""


def sigmoid_stack(inputs: int, depth: int, width: int, outputs: int) -> nn.Sequential:
    """Builds the network.

    Args:
        inputs: Numbers in an example, such as 17 frames of 20 features.
        depth: Hidden layers.
        width: Of a hidden layer.
        outputs: Classes.

    Returns:
        Maps float32 [N, ...] of `inputs` numbers an example, of about unit variance, to scores, float32
        [N, outputs].
    """
    net = mlp(inputs, [width] * depth, outputs, "sigmoid")
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(layers):
        between = 0 < number < depth
        nn.init.normal_(layer.weight, std=(1 / _SLOPE if between else 1) * layer.in_features**-0.5)
        with torch.no_grad():
            layer.bias.copy_(-_MIDDLE * layer.weight.sum(1) if number else torch.zeros_like(layer.bias))
    return net
