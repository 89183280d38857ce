"""Caffe's LeNet, the network of Caffe's MNIST example."""

from collections import OrderedDict

from torch import nn

from .config import LeNet

SMALLEST = 16
"""Fewer rows or columns than this would leave nothing after the second pooling: zeros around them make up."""


def lenet(_: LeNet, channels: int, height: int, width: int, classes: int) -> nn.Sequential:
    """Builds the network; its weights begin as Caffe's example fills them (variance 1 / fan-in, zero biases).

    See `sizes` for its arguments and what it returns.
    """
    missing = [max(SMALLEST - size, 0) for size in (height, width)]
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
