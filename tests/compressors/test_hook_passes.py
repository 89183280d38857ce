"""The hook with several backward passes a step, with what DDP reduces of a model, and what is refused.

The right gradients are those of DDP without a hook; every method here sends everything.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import in_turn
from torch import Tensor

Results = list[dict[str, Any]]
Tensors = dict[str, Tensor]

METHODS = ("none", "none, sum", "wgt", "wgt, sum", "powersgd")
STEPS = {"x none x x": 2, "x zero x x": 2, "x late-none x": 2, "x late-zero x": 2, "x n none x x": 2}
STEPS["x n zero x"] = 2
"""Optimizer steps in a sequence of passes, where it is not 1."""


@pytest.fixture(scope="module")
def two(scenarios: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What each of two workers brought back."""
    script = Path(__file__).with_name("pass_scenarios.py")
    return scenarios.run_group(script, "passes-2", 2, tmp_path_factory.mktemp("passes"))


def assert_close(found: Tensors, expected: Tensors, times: float = 1.0) -> None:
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        if each is None:
            assert found[name] is None, name
        else:
            torch.testing.assert_close(found[name], each * times, rtol=1e-5, atol=2e-6)


def by_method(method: str) -> float:
    """What a sum over two workers is of their mean."""
    return 2.0 if "sum" in method else 1.0


def test_only_what_is_new_in_a_pass_is_scaled_and_exchanged(two: Results) -> None:
    for worker in two:
        found = worker["several_passes"]
        cases = [case for case in found if len(case) == 4]
        assert len(cases) > 60
        for case in cases:
            sequence, option, method, _ = case
            assert_close(found[case]["gradients"], found[sequence, option], by_method(method))


def test_unscaled_none_is_ddp_bit_for_bit_whatever_the_passes(two: Results) -> None:
    for worker in two:
        found = worker["several_passes"]
        same = [case for case in found if case[2:] == ("none", 1.0)]
        assert len(same) > 15
        for sequence, option, *rest in same:
            plain = found[sequence, option]
            for name, gradient in found[(sequence, option, *rest)]["gradients"].items():
                assert torch.equal(gradient, plain[name])


def test_the_ledger_counts_optimizer_steps_and_every_exchange(two: Results) -> None:
    elements = 6 * 17 + 17 + 17 * 11 + 11 + 11 * 5 + 5
    found = two[0]["several_passes"]
    for case in found:
        if len(case) == 4:
            totals, passes = found[case]["totals"], case[0].split().count("x")
            assert totals["steps"] == STEPS.get(case[0], 1), case
            assert totals["elements"] == totals["sent"] == 2 * elements * passes


def test_replicas_stay_equal_when_workers_change_gradients_between_passes(two: Results) -> None:
    for worker in two:
        assert_close(worker["edited_between"]["hooked"], two[0]["edited_between"]["plain"])


@in_turn("method", METHODS)
@in_turn("view", (False, True))
def test_parameters_that_some_passes_use(method: str, view: bool, two: Results) -> None:
    for worker in two:
        found = worker["parts_in_turn"]
        assert found["plain", view]["never.weight"] is None
        assert_close(found[method, view], found["plain", view], by_method(method))


def test_a_memory_that_fades_refuses_a_second_exchange(two: Results) -> None:
    for worker in two:
        for line, text in worker["fading_memories"].items():
            field = "momentum" if "momentum" in line else "decay"
            assert text == (
                f"CompressionError: a second exchange before gradients are cleared would apply the method's "
                f"{field} twice in a step: run all backward passes but the last in ddp.no_sync(), and no Join"
            )


def test_a_skipped_pass_counts_for_its_step_and_no_other(two: Results) -> None:
    for worker in two:
        assert len(worker["skipped_passes"]) == 16
        for case, found in worker["skipped_passes"].items():
            assert found["skipped"] == [True, False], case
            assert (found["totals"]["steps"], found["totals"]["skipped_steps"]) == (3, 1), case


def test_nothing_of_a_skipped_step_is_lost(two: Results) -> None:
    for worker in two:
        for (line, *_), found in worker["skipped_passes"].items():
            if line.startswith("wgt"):
                given = {name: each.float().flatten() for name, each in found["given"].items()}
                assert_close(found["kept"], given)


# What DDP reduces.


@in_turn("method", [method for method in METHODS if "sum" not in method])
def test_parameters_frozen_before_the_state_was_made(method: str, two: Results) -> None:
    for worker in two:
        assert_close(worker["frozen_between"][method], worker["frozen_between"]["plain"])


@in_turn("method", METHODS)
def test_parameters_that_ddp_ignores_may_differ(method: str, two: Results) -> None:
    for worker in two:
        assert_close(worker["ignored"][method], worker["ignored"]["plain"], by_method(method))


def test_a_state_keeps_what_belongs_to_frozen_parameters(two: Results) -> None:
    for worker in two:
        for found in worker["stages"].values():
            assert not any(name.startswith("first") for name in found["few"])
            frozen = {name for name in found["all"] if name.startswith("first")}
            assert frozen == {"first.weight", "first.bias"}
            for name in frozen:
                assert found["all"][name].any()
                assert torch.equal(found["frozen"][name], found["all"][name])
            assert not torch.equal(found["frozen"]["head.weight"], found["all"]["head.weight"])


# Complex parameters.


@in_turn("method", ("none", "wgt", "sum"))
@in_turn("view", (False, True))
def test_complex_parameters(method: str, view: bool, two: Results) -> None:
    for worker in two:
        found = worker["complex_parameters"]
        assert all(found["plain", view][name].imag.any() for name in ("matrix", "image"))
        assert_close(found[method, view], found["plain", view], by_method(method))


def test_complex_parameters_count_as_two_real_numbers(two: Results) -> None:
    for worker in two:
        found = worker["complex_parameters"]
        assert found["elements"] == {"matrix": 48, "image": 48, "real": 4}
        assert found["seen"] == ["image", "matrix", "real"]
        assert_close(found["restored"], found["kept"])
        assert any(each.any() for each in found["kept"].values())
        for name, gradient in found["fp16", False].items():
            torch.testing.assert_close(gradient, found["plain", False][name], rtol=2e-3, atol=5e-3)


# What is refused.


@in_turn(
    "attempt, text",
    [
        ("two models", "CompressionError: a bucket of another model"),
        ("late", "CompressionError: the gradient of 'rows' is sparse"),
        ("late, noted", "the gradient of 'rows' is sparse"),
        ("Embedding", "ValueError: DDP expects a sparse gradient of table.weight"),
        ("EmbeddingBag", "ValueError: DDP expects a sparse gradient of table.weight"),
        ("complex", "ValueError: powersgd cannot take the complex parameter 'matrix'"),
        ("none", "TypeError: ddp is None: it must be, or hold, a model in torch.nn.parallel.Distributed"),
        ("module", "TypeError: ddp is of Network: it must be, or hold, a model"),
        ("fsdp", "TypeError: ddp is of FSDPNetwork: it must be, or hold, a model"),
        ("python_reducer", 'ValueError: torch._dynamo.config.optimize_ddp = "python_reducer"'),
        ("threads 0", "ValueError: threads = 0: must be a whole number of at least 1"),
        ("threads -1", "ValueError: threads = -1: must be a whole number of at least 1"),
        ("threads True", "ValueError: threads = True: must be a whole number of at least 1"),
        ("threads 1.5", "ValueError: threads = 1.5: must be a whole number of at least 1"),
        ("threads '2'", "ValueError: threads = '2': must be a whole number of at least 1"),
        ("frozen table", "taken"),
        ("after all", "taken"),
    ],
)
def test_one_sentence_on_every_worker(attempt: str, text: str, two: Results) -> None:
    for worker in two:
        assert worker["refused"][attempt].startswith(text)
        assert "\n" not in worker["refused"][attempt]
