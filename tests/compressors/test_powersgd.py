"""PowerSGD's state and settings; what it comes to in training is in ddp_powersgd.py."""

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from cases import in_turn
from ddp import assert_same
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from taugrad.compressors.methods import PowerSGD
from taugrad.compressors.methods.powersgd import Factors

pytestmark = pytest.mark.usefixtures("alone")


def made(parameters: dict[str, torch.Tensor], **options: Any) -> Factors:
    group: Any = dist.group.WORLD
    return PowerSGD(**options).exchange(group, parameters, {})


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def make(no_gpu: None) -> Callable[..., Factors]:
    """Makes a PowerSGD of a matrix [12, 10] and a vector [12]."""
    parameters = dict(nn.Linear(10, 12).named_parameters())
    return lambda **options: made(parameters, **{"rank": 2, "start": 2, **options})


def a_state(**changes: Any) -> dict[str, Any]:
    state = {
        "version": 1,
        "iteration": 3,
        "elements_before": 132,
        "elements_after": 56,
        "errors": {"weight": torch.arange(120.0), "bias": torch.arange(12.0)},
        "qs": {"weight": torch.arange(20.0).view(10, 2)},
    }
    return {name: value for name, value in (state | changes).items() if value is not None}


@in_turn(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"version": None}, "version None"),
        ({"qs": None}, "without qs"),
        ({"iteration": -1}, "iteration -1"),
        ({"elements_after": 0.5}, "elements_after 0.5"),
        ({"errors": {"tail": torch.zeros(3)}}, "error for 'tail'"),
        ({"qs": {"tail": torch.zeros(3, 2)}}, "Q for 'tail'"),
        ({"qs": {"bias": torch.zeros(1, 1)}}, "Q for 'bias'"),
        ({"errors": {"weight": torch.zeros(12, 10)}}, "error of 'weight' is torch.float32 (12, 10)"),
        ({"errors": {"bias": torch.zeros(12).double()}}, "error of 'bias' is torch.float64 (12,)"),
        ({"qs": {"weight": torch.zeros(10, 3)}}, "Q of 'weight' is torch.float32 (10, 3)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(
    changes: dict[str, Any], words: str, make: Callable[..., Factors]
) -> None:
    power = make()
    power.load_state_dict(a_state(iteration=7))
    with pytest.raises(ValueError, match=re.escape(words)):
        power.load_state_dict(a_state(**changes))
    assert_same(power.state_dict(), a_state(iteration=7))


@in_turn(("option", "words"), [("feedback", "error for 'weight'"), ("warm_start", "Q for 'weight'")])
def test_memory_that_a_run_does_not_keep_is_refused(
    option: str, words: str, make: Callable[..., Factors]
) -> None:
    with pytest.raises(ValueError, match=words):
        make(**{option: False}).load_state_dict(a_state())


# What torch's hook would only say later, or too often.


@in_turn(
    "parameter",
    [
        torch.zeros(()),
        torch.zeros(0),
        torch.zeros(3, 0),
        torch.zeros(4, 4, 3, 3).to(memory_format=torch.channels_last),
    ],
    ids=["scalar", "empty", "no columns", "channels last"],
)
def test_parameters_that_torch_fails_on_are_refused_by_name(
    parameter: torch.Tensor, no_gpu: None, alone: None
) -> None:
    with pytest.raises(ValueError, match="'odd'"):
        made({"even": torch.zeros(2), "odd": parameter})


def test_the_cpus_memory_is_refused_where_torch_finds_a_gpu(
    monkeypatch: pytest.MonkeyPatch, alone: None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        made({"weight": torch.zeros(2, 2)})


def test_a_level_that_someone_chose_for_torchs_logger_stays(
    make: Callable[..., Factors], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, root = powerSGD_hook.logger, logging.getLogger().level
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    make()
    assert logger.level == logging.DEBUG
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    make()
    assert logger.level == logging.WARNING
    assert logging.getLogger().level == root
