"""AlexNet and VGG16, both with a form for small images, and Caffe's LeNet.

Krizhevsky, Sutskever and Hinton 2012; Simonyan and Zisserman 2014, configuration D. Their parameters of
convolutions are named `conv.*`, those of fully connected layers `fc.*`.
"""

from collections import OrderedDict

from torch import nn

from .config import AlexNet, Form, LeNet, Vgg16
from .sizes import begin_as_he, check_size, numbers_of, scaled

_ALEXNET_SMALLEST: dict[Form, int] = {"small": 15, "imagenet": 63}
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
    check_size("AlexNet", height, width, _ALEXNET_SMALLEST[config.form], instead=smaller)
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


_VGG_SMALLEST = 32
"""Five poolings of 2 x 2 leave nothing of fewer rows or columns."""
_VGG_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Maps, and how many convolutions there are before a pooling."""


def vgg16(config: Vgg16, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; see `sizes` for the arguments and what is raised.

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

    See `sizes` for its arguments and what it returns.
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
