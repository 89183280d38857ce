"""Network in Network (Lin, Chen and Yan 2013), in its authors' two forms."""

from collections import OrderedDict

import torch
from torch import nn

from .config import Form, NetworkInNetwork
from .sizes import begin_as_he, check_size, scaled

SMALLEST: dict[Form, int] = {"small": 4, "imagenet": 39}
"""Fewer rows or columns than this leave the last pooling but one nothing to pool."""

_SCORE_WEIGHTS = 0.1
"""How large the weights of scores begin, next to He's."""


def nin(config: NetworkInNetwork, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; its weights begin as He et al. (2015) fill them, as no batch norm follows them.

    The scores of classes pass a ReLU, too. A class whose score begins at zero for every image has no
    gradient, and training may stand still. With biases, scores therefore begin near one.

    The form `small` is as trained on CIFAR, with dropout after two poolings; `imagenet` as in Caffe's model
    zoo, for 224 x 224, with dropout after the third. See `sizes` for the arguments and what is raised.
    """
    smaller = "mlp" if config.form == "small" else "nin with form: small"
    check_size("Network in Network", height, width, SMALLEST[config.form], instead=smaller)
    build = _small if config.form == "small" else _imagenet
    net = nn.Sequential(build(config, channels, classes))
    begin_as_he(net)
    *_, scores = (layer for layer in net.modules() if isinstance(layer, nn.Conv2d))
    if scores.bias is not None:
        nn.init.ones_(scores.bias)
        with torch.no_grad():
            scores.weight.mul_(_SCORE_WEIGHTS)
    return net


def _small(config: NetworkInNetwork, channels: int, classes: int) -> OrderedDict[str, nn.Module]:
    wide, middle, narrow = (scaled(maps, config.width_multiplier) for maps in (192, 160, 96))
    bias = config.bias
    return OrderedDict[str, nn.Module](
        block1=_mlpconv((channels, wide, middle, narrow), 5, bias=bias),
        pool1=nn.MaxPool2d(3, stride=2, ceil_mode=True),
        dropout1=nn.Dropout(config.dropout),
        block2=_mlpconv((narrow, wide, wide, wide), 5, bias=bias),
        pool2=nn.AvgPool2d(3, stride=2, ceil_mode=True),
        dropout2=nn.Dropout(config.dropout),
        block3=_mlpconv((wide, wide, wide, classes), 3, bias=bias),
        pool3=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )


def _imagenet(config: NetworkInNetwork, channels: int, classes: int) -> OrderedDict[str, nn.Module]:
    first, second, third, fourth = (scaled(maps, config.width_multiplier) for maps in (96, 256, 384, 1024))
    bias = config.bias
    return OrderedDict[str, nn.Module](
        block1=_mlpconv((channels, first, first, first), 11, bias=bias, stride=4, padding=0),
        pool1=nn.MaxPool2d(3, stride=2, ceil_mode=True),
        block2=_mlpconv((first, second, second, second), 5, bias=bias),
        pool2=nn.MaxPool2d(3, stride=2, ceil_mode=True),
        block3=_mlpconv((second, third, third, third), 3, bias=bias),
        pool3=nn.MaxPool2d(3, stride=2, ceil_mode=True),
        dropout3=nn.Dropout(config.dropout),
        block4=_mlpconv((third, fourth, fourth, classes), 3, bias=bias),
        pool4=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )


def _mlpconv(
    maps: tuple[int, int, int, int],
    kernel: int,
    *,
    bias: bool,
    stride: int = 1,
    padding: int | None = None,
) -> nn.Sequential:
    """A convolution, then two of 1 x 1, with a ReLU after each; by default the image keeps its size."""
    first, second, third, fourth = maps
    padding = kernel // 2 if padding is None else padding
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(first, second, kernel, stride, padding, bias=bias),
            relu=nn.ReLU(inplace=True),
            cccp1=nn.Conv2d(second, third, 1, bias=bias),
            relu1=nn.ReLU(inplace=True),
            cccp2=nn.Conv2d(third, fourth, 1, bias=bias),
            relu2=nn.ReLU(inplace=True),
        )
    )
