"""Networks of the timm package."""

import difflib
from importlib import import_module
from typing import cast

import torch
from torch import nn

from ..user_code import told
from .config import Timm

_MANY = 5
"""Names of networks in a message."""
_LOADS = {"cache_dir", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"}
"""Arguments of timm.create_model by which it reads files; some versions unpickle them."""


def timm_model(config: Timm, channels: int, height: int, width: int, classes: int) -> nn.Module:
    """Builds a network of timm with weights as timm begins them: nothing is downloaded.

    Many networks take one size of images only, unless the config's arguments name another. See `sizes` for
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
