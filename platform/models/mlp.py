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


def mlp(
    inputs: int,
    widths: Sequence[int],
    outputs: int,
    activation: Activation,
    *,
    activate_outputs: bool = False,
) -> nn.Sequential:
    """Builds the network; its weights begin as torch fills them.

    Args:
        inputs: Numbers in an example, such as channels * height * width.
        widths: The hidden layers' widths; none at all makes it a linear model.
        outputs: How many numbers it returns, such as classes.
        activation: What follows every hidden layer.
        activate_outputs: Whether it follows the last layer too.

    Returns:
        Maps float32 [N, ...] of `inputs` numbers an example to float32 [N, outputs].
    """
    layers = OrderedDict[str, nn.Module](flatten=nn.Flatten())
    for number, (fan_in, fan_out) in enumerate(pairwise([inputs, *widths, outputs]), start=1):
        layers[f"fc{number}"] = nn.Linear(fan_in, fan_out)
        if number <= len(widths) or activate_outputs:
            layers[f"{activation}{number}"] = _ACTIVATIONS[activation]()
    return nn.Sequential(layers)
