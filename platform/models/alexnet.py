"""AlexNet (Krizhevsky, Sutskever and Hinton 2012), with a form for small images.

Parameters of its convolutions are named `conv.*`, those of its fully connected layers `fc.*`.
"""

from collections import OrderedDict

from torch import nn

from .config import AlexNet, Form
from .sizes import begin_as_he, check_size, scaled, windows

SMALLEST: dict[Form, int] = {"small": 15, "imagenet": 63}
"""Fewer rows or columns than this would leave nothing after the last pooling."""


def alexnet(config: AlexNet, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network.

    Args:
        config: Its form. `imagenet` is the paper's, for 224 x 224 (zeros around an image make its sizes come
            out as printed; 227 x 227 gives the same): local response norm, overlapping poolings, weights and
            biases that begin as in the paper. `small` is the form that people train on CIFAR: 3 x 3
            convolutions of 64, 192, 384, 256, 256 maps, no norm, weights that begin as He et al. (2015) fill
            them.
        channels: Of an image, as in `sizes`.
        height: Of an image, at least `SMALLEST`.
        width: The same.
        classes: Of the data.

    Raises:
        ValueError: The images are too small.
    """
    small = config.form == "small"
    smaller = "lenet" if small else "alexnet with form: small"
    check_size("AlexNet", height, width, SMALLEST[config.form], instead=smaller)
    conv, maps = (_small if small else _imagenet)(config, channels)
    rows, columns = (_left(size, small=small) for size in (height, width))
    units = scaled(4096, config.width_multiplier)
    fc = OrderedDict[str, nn.Module](
        dropout6=nn.Dropout(config.dropout),
        fc6=nn.Linear(maps * rows * columns, units),
        relu6=nn.ReLU(inplace=True),
        dropout7=nn.Dropout(config.dropout),
        fc7=nn.Linear(units, units),
        relu7=nn.ReLU(inplace=True),
        fc8=nn.Linear(units, classes),
    )
    net = nn.Sequential(
        OrderedDict[str, nn.Module](conv=nn.Sequential(conv), flatten=nn.Flatten(), fc=nn.Sequential(fc))
    )
    if small:
        begin_as_he(net)
        return net
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear) and layer.bias is not None:
            nn.init.normal_(layer.weight, std=0.01)
            # Some biases begin with 1 in the paper, so that ReLUs are on.
            nn.init.constant_(layer.bias, float(name[-1] in "24567"))
    return net


def _left(size: int, *, small: bool) -> int:
    """Rows, or columns, after the last pooling."""
    if small:
        return windows(size, 3, 2, 1) // 2 // 2 // 2
    size = windows(size, 11, 4, 2)
    for _ in range(3):
        size = windows(size, 3, 2)
    return size


def _small(config: AlexNet, channels: int) -> tuple[OrderedDict[str, nn.Module], int]:
    one, two, three, four = (scaled(maps, config.width_multiplier) for maps in (64, 192, 384, 256))
    return OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, one, 3, stride=2, padding=1),
        relu1=nn.ReLU(inplace=True),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(one, two, 3, padding=1),
        relu2=nn.ReLU(inplace=True),
        pool2=nn.MaxPool2d(2),
        conv3=nn.Conv2d(two, three, 3, padding=1),
        relu3=nn.ReLU(inplace=True),
        conv4=nn.Conv2d(three, four, 3, padding=1),
        relu4=nn.ReLU(inplace=True),
        conv5=nn.Conv2d(four, four, 3, padding=1),
        relu5=nn.ReLU(inplace=True),
        pool5=nn.MaxPool2d(2),
    ), four


def _imagenet(config: AlexNet, channels: int) -> tuple[OrderedDict[str, nn.Module], int]:
    groups = 2 if config.grouped else 1
    one, two, three = (scaled(maps, config.width_multiplier, groups) for maps in (96, 256, 384))
    return OrderedDict[str, nn.Module](
        conv1=nn.Conv2d(channels, one, 11, stride=4, padding=2),
        relu1=nn.ReLU(inplace=True),
        norm1=_norm(),
        pool1=nn.MaxPool2d(3, stride=2),
        conv2=nn.Conv2d(one, two, 5, padding=2, groups=groups),
        relu2=nn.ReLU(inplace=True),
        norm2=_norm(),
        pool2=nn.MaxPool2d(3, stride=2),
        conv3=nn.Conv2d(two, three, 3, padding=1),
        relu3=nn.ReLU(inplace=True),
        conv4=nn.Conv2d(three, three, 3, padding=1, groups=groups),
        relu4=nn.ReLU(inplace=True),
        conv5=nn.Conv2d(three, two, 3, padding=1, groups=groups),
        relu5=nn.ReLU(inplace=True),
        pool5=nn.MaxPool2d(3, stride=2),
    ), two


def _norm() -> nn.Module:
    # The paper adds up alpha = 1e-4 times the squares of 5 maps; torch takes their mean.
    return nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)
