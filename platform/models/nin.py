"""Network in Network (Lin, Chen and Yan 2013), as its authors trained it on CIFAR."""

from collections import OrderedDict

from torch import nn

SMALLEST = 4
"""Fewer rows or columns than this leave the second pooling nothing to pool."""


def nin(
    channels: int, height: int, width: int, classes: int, *, dropout: float, width_multiplier: float
) -> nn.Sequential:
    """Builds the network; its weights begin as He et al. (2015) fill them, as no batch norm follows them.

    Args:
        channels: Channels of an image.
        height: Rows of an image, at least 4.
        width: Columns of an image, at least 4.
        classes: How many classes there are.
        dropout: The share of maps' values that is dropped after each of the two poolings.
        width_multiplier: Scales the hidden layers' numbers of maps (192, 160, 96), each at least 1.

    Returns:
        Maps float32 [N, channels, height, width] to class scores, float32 [N, classes].

    Raises:
        ValueError: The images are too small.
    """
    if min(height, width) < SMALLEST:
        raise ValueError(
            f"images of {height} x {width} are too small for Network in Network, whose two poolings need "
            f"at least {SMALLEST} x {SMALLEST}; `mlp` takes smaller ones"
        )
    wide, middle, narrow = (max(1, round(width_multiplier * maps)) for maps in (192, 160, 96))
    net = nn.Sequential(
        OrderedDict[str, nn.Module](
            block1=_mlpconv((channels, wide, middle, narrow), 5),
            pool1=nn.MaxPool2d(3, stride=2, ceil_mode=True),
            dropout1=nn.Dropout(dropout),
            block2=_mlpconv((narrow, wide, wide, wide), 5),
            pool2=nn.AvgPool2d(3, stride=2, ceil_mode=True),
            dropout2=nn.Dropout(dropout),
            block3=_mlpconv((wide, wide, wide, classes), 3),
            pool3=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


def _mlpconv(maps: tuple[int, int, int, int], kernel: int) -> nn.Sequential:
    """A convolution that keeps the image's size, then two of 1 x 1, with a ReLU after each."""
    first, second, third, fourth = maps
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(first, second, kernel, padding=kernel // 2),
            relu=nn.ReLU(inplace=True),
            cccp1=nn.Conv2d(second, third, 1),
            relu1=nn.ReLU(inplace=True),
            cccp2=nn.Conv2d(third, fourth, 1),
            relu2=nn.ReLU(inplace=True),
        )
    )
