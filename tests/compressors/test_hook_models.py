"""The hook and what people do with models: compile them, change their memory format, copy them, use Adam.

The workers run model_scenarios.py; how groups of scenarios are run is told in test_hook.py.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import in_turn
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

from taugrad.compressors.names import plain_names

Results = list[dict[str, Any]]


@pytest.fixture(scope="module")
def two(scenarios: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Results:
    script = Path(__file__).with_name("model_scenarios.py")
    found: Results = scenarios.run_group(script, "models-2", 2, tmp_path_factory.mktemp("models"))
    return found


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


@in_turn("how", ["plain", "compiled", "partly"])
@in_turn("kind", ["exempt", "layers"])
def test_patterns_match_a_compiled_model_as_they_do_the_model(how: str, kind: str, two: Results) -> None:
    for result in two:
        assert result["names_and_patterns"][how, kind] == ["middle.bias", "middle.weight"]


@in_turn("how", ["plain", "compiled"])
def test_a_pattern_that_matches_nothing_is_refused(how: str, two: Results) -> None:
    for result in two:
        assert result["names_and_patterns"][how, "refused"] == (
            "exempt.names: 'nrom*' matches no parameter of the model, which has head.weight, head.bias, "
            "middle.weight, middle.bias, first.weight, first.bias"
        )


def test_a_state_moves_between_a_compiled_model_and_a_plain_one(two: Results) -> None:
    for result in two:
        found = result["names_and_patterns"]
        assert found["compiled", "resumed"] == found["plain", "resumed"]


@in_turn(
    "when",
    ["never", "before", "after the state", "after a step", "later", "back", "loaded", "loaded back"],
)
def test_no_number_depends_on_how_weights_lie_in_memory(when: str, two: Results) -> None:
    for result in two:
        found, expected = result["memory_orders"][when, ""], result["memory_orders"]["expected"]
        for part in ("weights", "residuals"):
            assert [each.shape for each in found[part]] == [each.shape for each in expected[part]]
            for one, due in zip(found[part], expected[part], strict=True):
                torch.testing.assert_close(one, due, rtol=1e-5, atol=1e-6)
        if when.startswith("loaded"):
            moving, due = (result["memory_orders"][each, ", momentum=0.5"] for each in (when, "never"))
            assert any(each.any() for each in due["velocities"])
            for part in ("weights", "residuals", "velocities"):
                assert all(map(torch.equal, moving[part], due[part]))


METHODS = ("wgt(0.02, momentum=0.5)", "powersgd(start=2)", "none")


@in_turn("method", METHODS)
@in_turn("way", ["deepcopy", "pickle", "model", "averaged", "save", "copy of a copy"])
def test_a_copy_shares_nothing_and_training_goes_on_with_the_same_bits(
    method: str, way: str, two: Results
) -> None:
    for result in two:
        found, never = result["copies"][method, way], result["copies"][method, "never"]
        assert found["digests"] == never["digests"]
        if way != "save":
            assert found["kept"] == (6 if method == METHODS[0] else 0)
            assert found["same"]
            assert found["apart"]
            assert found["steps"] == found["loaded"] == 3
            assert "CompressionError: a copy of a CompressionState has no process group" in found["refused"]


@in_turn("case", ["wgt", "topk", "chunked_topk", "own class", "two optimizers"])
def test_adam_with_a_sparse_method_is_warned_of_once(case: str, two: Results) -> None:
    for result in two:
        (said,) = result["adam"][case]["said"]
        assert "linear(8)" in said
        assert "docs/how-to/own-script.md" in said
        assert result["adam"][case]["hooks"] == 0


@in_turn("case", ["sgd", "linear", "none", "everything", "another model's", "a second model"])
def test_nobody_else_is_warned(case: str, two: Results) -> None:
    for result in two:
        assert result["adam"][case]["said"] == []
        assert result["adam"][case]["hooks"] == (1 if case == "everything" else 0)
