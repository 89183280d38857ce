"""Residual networks for small images (He, Zhang, Ren and Sun 2015).

Section 4.2's CIFAR nets of 6n + 2 layers, whose shortcuts have no parameters (option A): where maps double,
the shortcut takes every second pixel and adds maps of zeros. And table 1's net of 18 layers with the first
layer of the CIFAR nets instead of its 7 x 7 convolution and pooling; its shortcuts project where maps double
(option B).
"""

from collections import OrderedDict

from torch import Tensor, nn

from .config import ResNet
from .sizes import begin_as_he, check_size

_STAGES_OF_18 = (64, 128, 256, 512)
_STAGES = (16, 32, 64)


def resnet(config: ResNet, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network for images of at least 5 x 5, of 18 layers 9 x 9; see `sizes`.

    Weights begin as He et al. (2015) fill them.
    """
    depth = config.depth
    stages, blocks = (_STAGES_OF_18, 2) if depth == 18 else (_STAGES, (depth - 2) // 6)
    # Two pixels a side are left at the end: batch norm needs several values of a map, be it of one image.
    smallest = 2 ** (len(stages) - 1) + 1
    check_size(f"a residual net of {depth} layers", height, width, smallest, instead="lenet")
    layers = OrderedDict[str, nn.Module](
        conv=nn.Conv2d(channels, stages[0], 3, padding=1, bias=False),
        norm=nn.BatchNorm2d(stages[0]),
        relu=nn.ReLU(inplace=True),
    )
    before = stages[0]
    for number, maps in enumerate(stages, start=1):
        stage = OrderedDict[str, nn.Module]()
        for block in range(1, blocks + 1):
            stage[f"block{block}"] = _Block(before, maps, project=depth == 18)
            before = maps
        layers[f"stage{number}"] = nn.Sequential(stage)
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(before, classes)
    net = nn.Sequential(layers)
    begin_as_he(net)
    return net


class _Block(nn.Module):
    """Two convolutions beside a shortcut; where maps double, the image is halved."""

    def __init__(self, before: int, maps: int, *, project: bool) -> None:
        super().__init__()
        stride = 1 if before == maps else 2
        self.conv1 = nn.Conv2d(before, maps, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(maps)
        self.conv2 = nn.Conv2d(maps, maps, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(maps)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if before != maps and project:
            self.shortcut = nn.Sequential(
                OrderedDict[str, nn.Module](
                    conv=nn.Conv2d(before, maps, 1, stride, bias=False), norm=nn.BatchNorm2d(maps)
                )
            )
        elif before != maps:
            self.shortcut = _HalvedWithZeros(maps - before)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = self.relu(self.norm1(self.conv1(inputs)))
        outputs: Tensor = self.relu(self.norm2(self.conv2(inner)) + self.shortcut(inputs))
        return outputs


class _HalvedWithZeros(nn.Module):
    """Every second pixel, and further maps of zeros."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.pad(inputs[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.more))
