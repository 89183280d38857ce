"""Names of parameters as people know them."""

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from taugrad.compressors.names import plain_names


def test_names_are_those_without_wrappers() -> None:
    inner = nn.Sequential(nn.Linear(2, 2, bias=False), checkpoint_wrapper(nn.Linear(2, 2, bias=False)))
    inner[0] = torch.compile(inner[0], backend="eager")  # type: ignore[assignment]
    model = torch.compile(AveragedModel(nn.DataParallel(inner)), backend="eager")
    assert list(plain_names(model).values()) == ["0.weight", "1.weight"]  # type: ignore[arg-type]


def test_a_layer_that_is_called_module_keeps_its_name() -> None:
    model = nn.Sequential()
    model.add_module("module", nn.Linear(2, 2, bias=False))
    assert list(plain_names(model).values()) == ["module.weight"]


def test_two_parameters_never_get_one_name() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.add_module("_orig_mod", nn.Linear(2, 2, bias=False))
    assert list(plain_names(model).values()) == ["weight", "_orig_mod.weight"]
