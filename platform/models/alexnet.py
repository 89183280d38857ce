"""AlexNet (Krizhevsky, Sutskever and Hinton 2012), with a form for small images.

Parameters of its convolutions are named `conv.*`, those of its fully connected layers `fc.*`.
"""

from collections import OrderedDict

from torch import nn

from .config import AlexNet, Form
from .sizes import begin_as_he, check_size, numbers_of, scaled

SMALLEST: dict[Form, int] = {"small": 15, "imagenet": 63}
"""Fewer rows or columns than this would leave nothing after the last pooling."""
_SMALL = ((64, 3, 2, 1), (192, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
_IMAGENET = ((96, 11, 4, 2), (256, 5, 1, 2), (384, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1))
"""Of each convolution: maps, kernel, stride, padding."""
_GROUPED, _NORMED, _POOLED = (2, 4, 5), (1, 2), (1, 2, 5)
"""Convolutions that see half of the maps each, those before a norm, those before a pooling."""


def alexnet(config: AlexNet, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; see `sizes` for the arguments and what is raised.

    The form `imagenet` is the paper's, for 224 x 224 (zeros around an image make its sizes come out as
    printed; 227 x 227 gives the same): local response norm, overlapping poolings, weights and biases that
    begin as in the paper. `small` is the form that people train on CIFAR: 3 x 3 convolutions of 64, 192, 384,
    256, 256 maps, no norm, weights that begin as He et al. (2015) fill them.
    """
    small = config.form == "small"
    smaller = "lenet" if small else "alexnet with form: small"
    check_size("AlexNet", height, width, SMALLEST[config.form], instead=smaller)
    conv = _convolutions(config, channels)
    units = scaled(4096, config.width_multiplier)
    fc = OrderedDict[str, nn.Module](
        dropout6=nn.Dropout(config.dropout),
        fc6=nn.Linear(numbers_of(conv, channels, height, width), units),
        relu6=nn.ReLU(inplace=True),
        dropout7=nn.Dropout(config.dropout),
        fc7=nn.Linear(units, units),
        relu7=nn.ReLU(inplace=True),
        fc8=nn.Linear(units, classes),
    )
    net = nn.Sequential(OrderedDict[str, nn.Module](conv=conv, flatten=nn.Flatten(), fc=nn.Sequential(fc)))
    if small:
        begin_as_he(net)
        return net
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.normal_(layer.weight, std=0.01)
            # Some biases begin with 1 in the paper, so that ReLUs are on.
            nn.init.constant_(layer.bias, float(name[-1] in "24567"))
    return net


def _convolutions(config: AlexNet, channels: int) -> nn.Sequential:
    """The convolutions with what follows each."""
    small = config.form == "small"
    groups = 2 if config.grouped and not small else 1
    layers, before = OrderedDict[str, nn.Module](), channels
    for number, layer in enumerate(_SMALL if small else _IMAGENET, start=1):
        maps, kernel, stride, padding = layer
        after = scaled(maps, config.width_multiplier, groups)
        halved = groups if number in _GROUPED else 1
        layers[f"conv{number}"] = nn.Conv2d(before, after, kernel, stride, padding, groups=halved)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        if number in _NORMED and not small:
            layers[f"norm{number}"] = _norm()
        if number in _POOLED:
            layers[f"pool{number}"] = nn.MaxPool2d(2) if small else nn.MaxPool2d(3, stride=2)
        before = after
    return nn.Sequential(layers)


def _norm() -> nn.Module:
    # The paper adds up alpha = 1e-4 times the squares of 5 maps; torch takes their mean.
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)
