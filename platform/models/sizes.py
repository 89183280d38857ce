"""What networks for images share: how large images are inside them, and their first weights.

Each is built by a function of its config, the images' channels, height and width, and the number of classes.
It maps float32 [N, channels, height, width] to class scores, float32 [N, classes]. The function raises
ValueError where images are too small.
"""

from copy import deepcopy

import torch
from torch import nn


def check_size(network: str, height: int, width: int, smallest: int, *, instead: str) -> None:
    """Refuses images of which a network would leave nothing, with ValueError.

    The message names a kind of model that takes smaller ones `instead`.
    """
    if min(height, width) < smallest:
        raise ValueError(
            f"images of {height} x {width} are too small for {network}, which needs at least "
            f"{smallest} x {smallest}; `{instead}` takes smaller ones"
        )


def numbers_of(part: nn.Module, channels: int, height: int, width: int) -> int:
    """How many numbers a part of a network makes of an image; nothing is computed for that."""
    image = torch.empty(1, channels, height, width, device="meta")
    return int(deepcopy(part).to("meta")(image).numel())


def begin_as_he(net: nn.Module) -> None:
    """Fills weights as He et al. (2015) do, and biases with zeros."""
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def scaled(width: int, multiplier: float, multiple: int = 1) -> int:
    """A layer's width times a factor, rounded to a multiple of a number, which it is at least."""
    return max(1, round(width * multiplier / multiple)) * multiple
