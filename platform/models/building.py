"""Builds a network from its config."""

import difflib
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, cast

import torch
from torch import nn

from ..data.shape import Shape
from ..spec.models import CustomModel, Gpt, Mlp, ModelConfig, SigmoidStack, Timm
from ..user_code import UserCodeError, call, import_object, told
from .convnets import alexnet, lenet, nin, resnet, vgg16
from .gpt import GptNetwork
from .mlp import mlp, sigmoid_stack


def timm_model(config: Timm, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Builds a network of timm with weights as timm begins them: nothing is downloaded.

    Many networks take one size of images only, unless the config's arguments name another. See `convnets` for
    the others. Raises ImportError: timm, or a package that it needs, is not installed; ValueError: timm has
    no such network, refuses the arguments, or the network does not take such images.
    """
    try:
        timm = import_module("timm")
    except ImportError as error:
        raise ImportError(
            f"kind = timm: timm cannot be imported ({error}); pip install 'taugrad[timm]' installs it with "
            "torchvision, whose build must be for the same torch"
        ) from error
    if loading := sorted(_LOADS & config.arguments.keys()):
        raise ValueError(
            f"arguments.{loading[0]}: timm would read a file, which may hold code; networks start untrained"
        )
    names: list[str] = timm.list_models()
    if config.name.partition(".")[0] not in names:
        near = difflib.get_close_matches(config.name, names, n=_MANY)
        meant = f"; did you mean {', '.join(near)}?" if near else "; see timm.list_models()"
        raise ValueError(f"name = {config.name}: timm has no such network{meant}")
    given = {"in_chans": channels, "num_classes": classes, **config.arguments, "pretrained": False}
    said = ", ".join(f"{name}={value!r}" for name, value in given.items())
    size = (1, channels, height, width)
    try:  # each network has its own arguments, its own sizes of images and its own errors
        made = cast(nn.Module, timm.create_model(config.name, **given))
        with torch.no_grad():
            scores = made.eval()(torch.zeros(size))
    except Exception as error:
        raise ValueError(
            f"name = {config.name}: timm, with {said} and images of {height} x {width}, raised {told(error)}"
        ) from error
    if scores.shape != (1, classes):
        raise ValueError(
            f"name = {config.name}: with {said} it returns {list(scores.shape)} for an image; "
            f"expected scores of shape {[1, classes]}"
        )
    return made.train()


_FOR_IMAGES: Mapping[str, Callable[[Any, int, int, int, int], nn.Module]] = {
    "lenet": lenet,
    "nin": nin,
    "alexnet": alexnet,
    "resnet": resnet,
    "vgg16": vgg16,
    "timm": timm_model,
}
"""By kind the function of a config, an image's channels, height and width, and the number of classes."""
_CONTRACT = "a model's factory takes {size} and what model.arguments holds, and returns a torch.nn.Module"


def build(config: ModelConfig, shape: Shape) -> nn.Module:
    """Builds the network that a config describes, for examples of a given shape, on the CPU.

    It maps inputs [N, ...] to float32 [N, outputs], tokens to [N, positions, outputs]. Initial weights come
    from torch's global random generator: seed it before, equally on every worker.

    Raises ValueError: the network does not take such inputs, images are too small for it, or timm refuses;
    ImportError: timm is not installed; UserCodeError: a custom factory cannot be found or called, raised, or
    returned no `torch.nn.Module`.
    """
    match config:
        case Mlp():
            hidden, last = config.widths, config.activate_outputs
            inputs = _numbers(config, shape)
            return mlp(inputs, hidden, shape.outputs, config.activation, activate_outputs=last)
        case SigmoidStack():
            return sigmoid_stack(_numbers(config, shape), config.depth, config.width, shape.outputs)
        case Gpt():
            return GptNetwork(config, *_tokens(config, shape))
        case CustomModel():
            return _custom(config, shape)
        case _:
            return _FOR_IMAGES[config.kind](config, *_image(config, shape))


def _image(config: ModelConfig, shape: Shape) -> tuple[int, int, int, int]:
    """Channels, height, width and outputs, for networks that take images only."""
    if not shape.is_image:
        better = "gpt" if shape.token_inputs else "mlp"
        raise ValueError(
            f"kind = {config.kind}: takes images, but this data has {shape}; {better} takes them"
        )
    channels, height, width = shape.inputs
    return channels, height, width, shape.outputs


def _numbers(config: ModelConfig, shape: Shape) -> int:
    """How many numbers an example has, for networks that take any."""
    if shape.token_inputs:
        raise ValueError(f"kind = {config.kind}: takes numbers, but this data has {shape}; gpt takes them")
    return math.prod(shape.inputs)


def _tokens(config: ModelConfig, shape: Shape) -> tuple[int, int]:
    """Positions and vocabulary, for networks that take tokens only."""
    if not shape.token_inputs:
        better = "lenet" if shape.is_image else "mlp"
        raise ValueError(
            f"kind = {config.kind}: takes tokens, but this data has {shape}; {better} takes them"
        )
    return shape.inputs[0], shape.outputs


def _custom(config: CustomModel, shape: Shape) -> nn.Module:
    size = shape.keywords()
    path = config.factory
    contract = _CONTRACT.format(size=", ".join(size))
    if taken := size.keys() & config.arguments.keys():
        names = ", ".join(sorted(taken))
        raise UserCodeError(
            path, f"model.arguments has {names}; these come from the data and must not be given"
        )
    made = call(path, import_object(path), {**size, **config.arguments}, contract)
    if not isinstance(made, nn.Module):
        raise UserCodeError(path, f"it returned {made!r:.60} of type {type(made).__name__}; {contract}")
    return made


def try_out(config: ModelConfig, model: nn.Module, inputs: torch.Tensor, shape: Shape) -> None:
    """Runs a user's own network once, on a few examples' inputs [N, ...], before workers do.

    Those that come with taugrad are left alone. Raises UserCodeError: it has nothing to train, raised, or
    does not return what `build` says.
    """
    if not isinstance(config, CustomModel):
        return
    path = config.factory
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserCodeError(path, "its network has no parameter that is trained (requires_grad)")
    given = f"{'tokens' if shape.token_inputs else 'images' if shape.is_image else 'inputs'} of shape"
    given = f"{given} {list(inputs.shape)}"
    wanted = [len(inputs), *shape.inputs * shape.token_inputs, shape.outputs]
    try:
        with torch.no_grad():
            outputs = model.eval()(inputs)
    except Exception as error:  # whatever a user's network raises
        raise UserCodeError(path, f"its network, called with {given}, raised {told(error)}") from error
    finally:
        model.train()
    actual = list(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
    if actual != wanted:
        raise UserCodeError(
            path,
            f"its network, called with {given}, returned {actual}; expected scores of shape {wanted}",
        )


_MANY = 5
"""Names of networks in a message."""
_LOADS = {"cache_dir", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"}
"""Arguments of timm.create_model by which it reads files; some versions unpickle them."""
