"""A fully connected network."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from .config import Activation

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
}


def mlp(inputs: int, widths: Sequence[int], classes: int, activation: Activation) -> nn.Sequential:
    """Builds the network; its weights begin as torch fills them.

    Args:
        inputs: Numbers in an image: channels * height * width.
        widths: The hidden layers' widths; none at all makes it a linear classifier.
        classes: How many classes there are.
        activation: What follows every hidden layer.

    Returns:
        Maps float32 [N, ...] of `inputs` numbers an example to class scores, float32 [N, classes].
    """
    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten())
    for number, (fan_in, fan_out) in enumerate(pairwise([inputs, *widths, classes]), start=1):
        layers[f"fc{number}"] = nn.Linear(fan_in, fan_out)
        if number <= len(widths):
            layers[f"{activation}{number}"] = _ACTIVATIONS[activation]()
    return nn.Sequential(layers)
