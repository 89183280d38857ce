"""Networks for images: AlexNet, VGG16, Caffe's LeNet, Network in Network and residual networks.

Each is built by a function of its config, the images' channels, height and width, and the number of classes.
It maps float32 [N, channels, height, width] to class scores, float32 [N, classes]. The function raises
ValueError where images are too small. Parameters of AlexNet's and VGG16's convolutions are named `conv.*`,
those of their fully connected layers `fc.*`.

AlexNet: Krizhevsky, Sutskever and Hinton 2012. VGG16: Simonyan and Zisserman 2014, configuration D. Network
in Network: Lin, Chen and Yan 2013, in its authors' two forms. Residual networks: He, Zhang, Ren and Sun 2015,
section 4.2's CIFAR nets of 6n + 2 layers, whose shortcuts have no parameters (option A): where maps double,
the shortcut takes every second pixel and adds maps of zeros; and table 1's net of 18 layers with the first
layer of the CIFAR nets instead of its 7 x 7 convolution and pooling; its shortcuts project where maps double
(option B).
"""

from collections import OrderedDict
from copy import deepcopy

import torch
from torch import Tensor, nn

from ..spec.models import AlexNet, Form, LeNet, NetworkInNetwork, ResNet, Vgg16


def check_size(network: str, height: int, width: int, smallest: int, *, instead: str) -> None:
    """Refuses images of which a network would leave nothing, with ValueError.

    The message names a kind of model that takes smaller ones `instead`.
    """
    if min(height, width) < smallest:
        raise ValueError(
            f"images of {height} x {width} are too small for {network}, which needs at least "
            f"{smallest} x {smallest}; `{instead}` takes smaller ones"
        )


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


_ALEXNET_SMALLEST: dict[Form, int] = {"small": 15, "imagenet": 63}
"""Fewer rows or columns than this would leave nothing after the last pooling."""
_SMALL = ((64, 3, 2, 1), (192, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
_IMAGENET = ((96, 11, 4, 2), (256, 5, 1, 2), (384, 3, 1, 1), (384, 3, 1, 1), (256, 3, 1, 1))
"""Each convolution's maps, kernel, stride and padding."""
_GROUPED, _NORMED, _POOLED = (2, 4, 5), (1, 2), (1, 2, 5)
"""Convolutions that see half of the maps each, those before a norm, those before a pooling."""


def alexnet(config: AlexNet, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; see above for the arguments and what is raised.

    The form `imagenet` is the paper's, for 224 x 224 (zeros around an image make its sizes come out as
    printed; 227 x 227 gives the same): local response norm, overlapping poolings, weights and biases that
    begin as in the paper. `small` is the form that people train on CIFAR: 3 x 3 convolutions of 64, 192, 384,
    256, 256 maps, no norm, weights that begin as He et al. (2015) fill them.
    """
    small = config.form == "small"
    smaller = "lenet" if small else "alexnet with form: small"
    check_size("AlexNet", height, width, _ALEXNET_SMALLEST[config.form], instead=smaller)
    conv = _convolutions(config, channels)
    units = scaled(4096, config.width_multiplier)
    image = torch.empty(1, channels, height, width, device="meta")  # nothing is computed
    fc = OrderedDict[str, nn.Module](
        dropout6=nn.Dropout(config.dropout),
        fc6=nn.Linear(deepcopy(conv).to("meta")(image).numel(), units),
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
            # The paper adds up alpha = 1e-4 times the squares of 5 maps; torch takes their mean.
            layers[f"norm{number}"] = nn.LocalResponseNorm(5, alpha=5e-4, beta=0.75, k=2)
        if number in _POOLED:
            layers[f"pool{number}"] = nn.MaxPool2d(2) if small else nn.MaxPool2d(3, stride=2)
        before = after
    return nn.Sequential(layers)


_VGG_SMALLEST = 32
"""Five poolings of 2 x 2 leave nothing of fewer rows or columns."""
_VGG_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Maps, and how many convolutions there are before a pooling."""


def vgg16(config: Vgg16, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; see above for the arguments and what is raised.

    Weights begin as He et al. (2015) fill them; the paper had to train a smaller net first. The form
    `imagenet` is as in the paper, with two hidden fully connected layers of 4,096; `small` has batch norm
    after each convolution and one fully connected layer, as is usual for CIFAR.
    """
    check_size("VGG16", height, width, _VGG_SMALLEST, instead="resnet")
    small = config.form == "small"
    conv, before = OrderedDict[str, nn.Module](), channels
    for block, (maps, count) in enumerate(_VGG_BLOCKS, start=1):
        after = scaled(maps, config.width_multiplier)
        for number in range(1, count + 1):
            name = f"{block}_{number}"
            conv[f"conv{name}"] = nn.Conv2d(before, after, 3, padding=1)
            if small:
                conv[f"norm{name}"] = nn.BatchNorm2d(after)
            conv[f"relu{name}"] = nn.ReLU(inplace=True)
            before = after
        conv[f"pool{block}"] = nn.MaxPool2d(2)
    inputs = before * (height // _VGG_SMALLEST) * (width // _VGG_SMALLEST)
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


_LENET_SMALLEST = 16
"""Fewer rows or columns than this would leave nothing after the second pooling: zeros around them make up."""


def lenet(_: LeNet, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; its weights begin as Caffe's example fills them (variance 1 / fan-in, zero biases).

    See above for its arguments and what it returns.
    """
    missing = [max(_LENET_SMALLEST - size, 0) for size in (height, width)]
    rows, columns = (
        ((size + more - 4) // 2 - 4) // 2 for size, more in zip((height, width), missing, strict=True)
    )
    above, left = (more // 2 for more in missing)
    padding = (left, missing[1] - left, above, missing[0] - above)
    net = nn.Sequential(
        OrderedDict[str, nn.Module](
            pad=nn.ZeroPad2d(padding) if any(missing) else nn.Identity(),
            conv1=nn.Conv2d(channels, 20, 5),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(20, 50, 5),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(50 * rows * columns, 500),
            relu=nn.ReLU(),
            fc2=nn.Linear(500, classes),
        )
    )
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            # Caffe's "xavier" looks at the fan-in alone, unlike torch's.
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="linear")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return net


_NIN_SMALLEST: dict[Form, int] = {"small": 4, "imagenet": 39}
"""Fewer rows or columns than this leave the last pooling but one nothing to pool."""

_SCORE_WEIGHTS = 0.1
"""How large the weights of scores begin, next to He's."""


def nin(config: NetworkInNetwork, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; its weights begin as He et al. (2015) fill them, as no batch norm follows them.

    The scores of classes pass a ReLU, too. A class whose score begins at zero for every image has no
    gradient, and training may stand still. With biases, scores therefore begin near one.

    The form `small` is as trained on CIFAR, with dropout after two poolings; `imagenet` as in Caffe's model
    zoo, for 224 x 224, with dropout after the third. See above for the arguments and what is raised.
    """
    smaller = "mlp" if config.form == "small" else "nin with form: small"
    check_size("Network in Network", height, width, _NIN_SMALLEST[config.form], instead=smaller)
    build = _nin_small if config.form == "small" else _nin_imagenet
    net = nn.Sequential(build(config, channels, classes))
    begin_as_he(net)
    *_, scores = (layer for layer in net.modules() if isinstance(layer, nn.Conv2d))
    if scores.bias is not None:
        nn.init.ones_(scores.bias)
        with torch.no_grad():
            scores.weight.mul_(_SCORE_WEIGHTS)
    return net


def _nin_small(config: NetworkInNetwork, channels: int, classes: int) -> OrderedDict[str, nn.Module]:
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


def _nin_imagenet(config: NetworkInNetwork, channels: int, classes: int) -> OrderedDict[str, nn.Module]:
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


_STAGES_OF_18 = (64, 128, 256, 512)
_STAGES = (16, 32, 64)


def resnet(config: ResNet, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network for images of at least 5 x 5, of 18 layers 9 x 9.

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
