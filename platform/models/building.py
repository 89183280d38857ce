"""From a config to a network."""

from typing import assert_never

import torch
from torch import nn

from ..importing import import_object
from ..own_code import OwnCodeError, call, told
from .config import CustomModel, LeNet, Mlp, ModelConfig, NetworkInNetwork
from .lenet import lenet
from .mlp import mlp
from .nin import nin

_CONTRACT = (
    "a model's factory takes channels, height, width, classes and what model.arguments holds, "
    "and returns a torch.nn.Module"
)


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
        OwnCodeError: A custom factory cannot be found or called, raised, or returned no `torch.nn.Module`.
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
    path = config.factory
    if taken := size.keys() & config.arguments.keys():
        names = ", ".join(sorted(taken))
        raise OwnCodeError(
            path, f"model.arguments has {names}; these come from the data and must not be given"
        )
    made = call(path, import_object(path), {**size, **config.arguments}, _CONTRACT)
    if not isinstance(made, nn.Module):
        raise OwnCodeError(path, f"it returned {made!r:.60} of type {type(made).__name__}; {_CONTRACT}")
    return made


def try_out(config: ModelConfig, model: nn.Module, inputs: torch.Tensor, classes: int) -> None:
    """Runs a user's own network once, before workers do.

    Args:
        config: What it was built from; the networks that come with taugrad are left alone.
        model: The network.
        inputs: float32 [N, channels, height, width], a few examples.
        classes: How many classes there are.

    Raises:
        OwnCodeError: It has nothing to train, raised, or does not return scores of [N, classes].
    """
    if not isinstance(config, CustomModel):
        return
    path = config.factory
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OwnCodeError(path, "its network has no parameter that is trained (requires_grad)")
    shape, wanted = list(inputs.shape), [len(inputs), classes]
    try:
        with torch.no_grad():
            scores = model.eval()(inputs)
    except Exception as error:  # whatever a user's network raises
        raise OwnCodeError(
            path, f"its network, called with images of shape {shape}, raised {told(error)}"
        ) from error
    finally:
        model.train()
    found = list(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if found != wanted:
        raise OwnCodeError(
            path,
            f"its network, called with images of shape {shape}, returned {found}; "
            f"expected class scores of shape {wanted}",
        )
