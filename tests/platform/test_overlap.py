"""Exchanges that begin in the backward pass: the bits and bytes of those that begin after it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import in_turn
from forked import run_workers
from overlap_process import (
    BROKEN,
    CASES,
    EQUAL,
    LATER,
    OVERFLOWS,
    STEPS,
    WORKERS,
    build,
    found_of,
    learn,
    model_of,
)

Found = list[dict[str, Any]]
"""By rank."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("overlap")
    script = Path(__file__).with_name("overlap_process.py")
    run_workers(script, lambda rank: (rank, WORKERS, folder), WORKERS, timeout_s=240)
    return [torch.load(folder / f"overlap_{rank}.pt", weights_only=True) for rank in range(WORKERS)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the workers have: how a product of matrices is rounded may depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(each, other[key]) for key, each in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@in_turn("name", CASES)
def test_workers_end_with_the_bits_and_bytes_of_simulated_ones(found: Found, name: str) -> None:
    """Simulated workers exchange nothing before all gradients are computed."""
    spec = CASES[name] | {"sync": {"mode": "simulated", "of": CASES[name]["sync"]}}
    sync = build(spec, model_of(name))
    losses = learn(name, sync, range(STEPS))
    expected = found_of(sync)
    assert sum(worker[name]["losses"][-1] for worker in found) / WORKERS == pytest.approx(losses[-1])
    for rank, worker in enumerate(found):
        for what in ("weights", "totals", "links"):
            assert same(worker[name][what], expected[what]), what
        assert same(worker[name]["kept"][str(rank)], expected["kept"][str(rank)])
    for layer, other in zip(found[0][name]["layers"], expected["layers"], strict=True):
        # The sum of squares is only reported: compilers may add it up in any order.
        squares = pytest.approx(other["residual_squares"], rel=1e-6)
        assert layer == other | {"residual_squares": squares}
    assert found[0][name]["statistics"] == expected["statistics"]
    assert expected["totals"]["skipped_steps"] == (name in OVERFLOWS)


@in_turn("name", CASES)
def test_a_run_that_goes_on_from_its_middle_keeps_the_same(found: Found, name: str) -> None:
    for worker in found:
        for what in ("weights", "totals", "links", "kept"):
            assert same(worker[name]["resumed"][what], worker[name][what]), what


def test_what_may_be_left_out_or_must_be_whole_first_begins_after_the_backward_pass(found: Found) -> None:
    for worker in found:
        assert {name: worker[name]["overlaps"] for name in CASES} == {
            **dict.fromkeys(EQUAL, True),
            **dict.fromkeys(LATER, False),
        }


def test_messages_arrive_are_summed_up_and_go_back_in_the_backward_pass(found: Found) -> None:
    """None of the three passes ends before its worker has the others' last layers."""
    for worker in found:
        ((_, began, ended),) = [span for span in worker["order"] if span[0] == "backward"]
        inside = [span[0] for span in worker["order"] if began < span[1] and span[2] < ended]
        assert "decode" in inside
        assert inside.count("compress") > 3 * WORKERS  # all ranges, and the way back of one
        assert min(span[1] for span in worker["order"] if span[0] == "exchange" and span[1] > began) < ended


@in_turn("case", [case for case in BROKEN if "finite" in case])
def test_all_workers_name_the_gradient_that_is_not_finite(found: Found, case: str) -> None:
    layer = "head.bias" if "last layer" in case else "first.bias"
    for worker in found:
        kind, text = worker["broken"][case]
        assert kind == "NonFiniteGradient"
        assert layer in text
        assert "worker 1" in text or "rank 1" in text


def test_an_error_in_the_backward_pass_is_the_worker_s_own(found: Found) -> None:
    kind, text = found[0]["broken"]["damaged"]
    assert kind == "CorruptMessage"
    assert text.startswith("the message of worker 1: ")
    for worker in found[1:]:
        assert worker["broken"]["damaged"][0] == "PeerLost"  # worker 0 is gone


def test_a_gradient_that_comes_twice_is_refused(found: Found) -> None:
    for worker in found:
        kind, text = worker["broken"]["twice"]
        assert kind == "RuntimeError"
        assert text.startswith("the gradient of hidden.")
        assert "came twice" in text
        assert "sync.overlap: false" in text
