"""From a config to a network."""

from typing import assert_never

from torch import nn

from ..importing import import_object
from .config import CustomModel, LeNet, Mlp, ModelConfig, NetworkInNetwork
from .lenet import lenet
from .mlp import mlp
from .nin import nin


class ModelError(ValueError):
    """A custom model that is not a network."""


def build(config: ModelConfig, *, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Builds the network that a config describes, for images of a given size.

    The first weights come from torch's global random generator: seed it before, the same on every worker.

    Args:
        config: Any of the model configs.
        channels: Channels of an image.
        height: Rows of an image.
        width: Columns of an image.
        classes: How many classes there are.

    Returns:
        Maps float32 [N, channels, height, width] to class scores, float32 [N, classes]; on the CPU.

    Raises:
        ValueError: The images are too small for the network.
        ModelError: A custom factory returned something else than a `torch.nn.Module`.
        ImportPathError: A custom factory cannot be found.
    """
    match config:
        case LeNet():
            return lenet(channels, height, width, classes)
        case Mlp():
            return mlp(channels * height * width, config.widths, classes, config.activation)
        case NetworkInNetwork():
            return nin(
                channels,
                height,
                width,
                classes,
                dropout=config.dropout,
                width_multiplier=config.width_multiplier,
            )
        case CustomModel():
            return _custom(config, channels, height, width, classes)
        case _:
            assert_never(config)


def _custom(config: CustomModel, channels: int, height: int, width: int, classes: int) -> nn.Module:
    size = {"channels": channels, "height": height, "width": width, "classes": classes}
    if taken := size.keys() & config.arguments.keys():
        raise ModelError(
            f"arguments of {config.factory} has {', '.join(sorted(taken))}; "
            "these come from the data and must not be given"
        )
    made = import_object(config.factory)(**size, **config.arguments)
    if not isinstance(made, nn.Module):
        raise ModelError(
            f"{config.factory} returned a {type(made).__name__}; it must return a torch.nn.Module"
        )
    return made
