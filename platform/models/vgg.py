"""VGG16 (Simonyan and Zisserman 2014, configuration D), with a form for small images."""

from collections import OrderedDict

from torch import nn

from .config import Vgg16
from .sizes import begin_as_he, check_size, scaled

SMALLEST = 32
"""Five poolings of 2 x 2 leave nothing of fewer rows or columns."""
_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Maps, and how many convolutions there are before a pooling."""


def vgg16(config: Vgg16, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; see `sizes` for the arguments and what is raised.

    Weights begin as He et al. (2015) fill them; the paper had to train a smaller net first. The form
    `imagenet` is as in the paper, with two hidden fully connected layers of 4,096; `small` has batch norm
    after each convolution and one fully connected layer, as is usual for CIFAR. Parameters of convolutions
    are named conv.*, those of fully connected layers fc.*.
    """
    check_size("VGG16", height, width, SMALLEST, instead="resnet")
    small = config.form == "small"
    conv, before = OrderedDict[str, nn.Module](), channels
    for block, (maps, count) in enumerate(_BLOCKS, start=1):
        after = scaled(maps, config.width_multiplier)
        for number in range(1, count + 1):
            name = f"{block}_{number}"
            conv[f"conv{name}"] = nn.Conv2d(before, after, 3, padding=1)
            if small:
                conv[f"norm{name}"] = nn.BatchNorm2d(after)
            conv[f"relu{name}"] = nn.ReLU(inplace=True)
            before = after
        conv[f"pool{block}"] = nn.MaxPool2d(2)
    inputs = before * (height // SMALLEST) * (width // SMALLEST)
    units = scaled(4096, config.width_multiplier)
    fc = OrderedDict[str, nn.Module]()
    for number in () if small else (6, 7):
        fc[f"fc{number}"] = nn.Linear(inputs, units)
        fc[f"relu{number}"] = nn.ReLU(inplace=True)
        fc[f"dropout{number}"] = nn.Dropout(config.dropout)
        inputs = units
    fc["fc8"] = nn.Linear(inputs, classes)
    net = nn.Sequential(
        OrderedDict[str, nn.Module](conv=nn.Sequential(conv), flatten=nn.Flatten(), fc=nn.Sequential(fc))
    )
    begin_as_he(net)
    return net
