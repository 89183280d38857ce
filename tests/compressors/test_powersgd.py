"""PowerSGD in real DDP over gloo, on the loopback interface; see powersgd_worker.py.

The workers run all scenarios in a row, a second set of processes goes on from the first one's checkpoints,
and each test here judges what they brought back.
"""

import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import in_turn
from forked import run_workers
from torch import nn

from taugrad.compressors.method import PowerSGD as Fields
from taugrad.compressors.peers import powersgd
from taugrad.compressors.peers.powersgd import PowerSGD

Results = list[dict[str, Any]]
"""By rank, what each scenario of a group returned."""

TIMEOUT_S = 100
STEPS, STOP = 12, 6
RANK = {"rank 2": 2, "rank 3": 3, "several buckets, rank 3": 3, "cold start": 2}
START = {"stopped at start": STOP, "stopped before start": STOP + 1, "several buckets, rank 3": 3}
RATE = {"other rate": 3.5}
ONE_BUCKET = ("rank 1", "rank 2", "rank 3", "neither", "other rate")
SEVERAL_BUCKETS = (
    "several buckets",
    "several buckets, rank 3",
    "cold start",
    "no feedback",
    "stopped at start",
    "stopped before start",
    "bucket view",
)
VARIANTS = ONE_BUCKET + SEVERAL_BUCKETS
WITHOUT_FEEDBACK = ("no feedback", "neither")

every_variant = in_turn("variant", VARIANTS)


def run_group(group: str, workers: int, folder: Path) -> Results:
    """Runs a group of scenarios; fails when a worker fails, or hangs."""
    script = Path(__file__).with_name("powersgd_worker.py")
    run_workers(script, lambda rank: (group, rank, workers, folder), workers, timeout_s=TIMEOUT_S)
    return [torch.load(folder / f"{group}-{rank}.pt", weights_only=True) for rank in range(workers)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("powersgd")


@pytest.fixture(scope="module")
def two(folder: Path) -> Results:
    return run_group("first-2", 2, folder)


@pytest.fixture(scope="module")
def resumed(folder: Path, two: Results) -> Results:
    """New processes, from what `stopped` of the first ones saved."""
    return [result["resumed"] for result in run_group("second-2", 2, folder)]


@pytest.fixture(scope="module")
def three(folder: Path) -> Results:
    return run_group("first-3", 3, folder)


@pytest.fixture(params=["two", "three"])
def several(request: pytest.FixtureRequest) -> Results:
    found: Results = request.getfixturevalue(request.param)
    return found


def assert_same_state(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Fails where two states differ in a name or a bit."""
    assert found.keys() == expected.keys()
    for part, value in expected.items():
        if part in {"errors", "qs"}:
            assert found[part].keys() == value.keys()
            for name, tensor in value.items():
                assert found[part][name].numpy().tobytes() == tensor.numpy().tobytes(), (part, name)
        else:
            assert found[part] == value, part


# Training.


@every_variant
def test_replicas_are_identical_after_every_step(variant: str, several: Results) -> None:
    digests = [result["straight"][variant]["digests"] for result in several]
    assert all(each == digests[0] for each in digests)
    assert len(set(digests[0])) == STEPS


@every_variant
def test_every_replica_keeps_the_same_qs_and_errors_of_its_own(variant: str, two: Results) -> None:
    one, other = (result["straight"][variant]["state"] for result in two)
    assert_same_state({**one, "errors": {}}, {**other, "errors": {}})
    for name, error in one["errors"].items():
        assert not torch.equal(error, other["errors"][name])
    assert bool(one["errors"]) == (variant not in WITHOUT_FEEDBACK)
    assert bool(one["qs"]) == (variant not in {"cold start", "neither"})


@in_turn("variant", sorted(set(VARIANTS) - set(WITHOUT_FEEDBACK)))
def test_with_feedback_nothing_is_lost(variant: str, several: Results) -> None:
    """The gradients of all workers are what was applied and what the workers keep, by parameter."""
    results = [result["straight"][variant] for result in several]
    approximated = False
    for name, applied in results[0]["applied"].items():
        given = sum(result["local"][name] for result in results) / len(results)
        kept = sum(result["state"]["errors"][name].double() for result in results) / len(results)
        torch.testing.assert_close(applied + kept.view_as(applied), given, rtol=0, atol=2e-6)
        approximated |= not torch.allclose(applied, given, rtol=0, atol=1e-4)
    assert approximated


@in_turn("variant", WITHOUT_FEEDBACK)
def test_without_feedback_something_is_lost(variant: str, two: Results) -> None:
    results = [result["straight"][variant] for result in two]
    differences = []
    for name, applied in results[0]["applied"].items():
        given = sum(result["local"][name] for result in results) / len(results)
        differences.append(float((applied - given).abs().max()))
    assert max(differences) > 1e-3


@in_turn("variant", ["rank 1", "rank 2", "rank 3", "several buckets", "no feedback"])
def test_weights_are_those_of_torchs_hook_alone(variant: str, two: Results) -> None:
    for result in two:
        assert result["straight"][variant]["digests"] == result["torch_alone"][variant]


def test_a_gradient_of_low_rank_comes_through_whole(two: Results) -> None:
    results = [result["a_gradient_of_low_rank"] for result in two]
    for step in range(5):
        expected = (results[0]["local"][step] + results[1]["local"][step]) / 2
        singular = torch.linalg.svdvals(expected)
        assert singular[3] > 0.1 * singular[0]  # a lower rank could not hold it
        for result in results:
            tolerance = 1e-3 * float(expected.abs().max())
            torch.testing.assert_close(result["mean"][step], expected, rtol=0, atol=tolerance)
            # No tensor is left uncompressed; P is [30, 4] and Q [40, 4].
            assert result["reduced"][step] == ([40 * 30] if step < 2 else [0, 30 * 4, 40 * 4])


@in_turn("variant", ["rank 1", "rank 2", "rank 3", "cold start"])
def test_gradients_of_zeros_change_nothing_and_stop_nothing(variant: str, two: Results) -> None:
    for result in two:
        found = result["gradients_of_zeros"][variant]
        assert len(set(found["digests"][:3])) == 1
        assert found["finite"]
        assert all(found["moved"].values()), found["moved"]


# What was handed over.


def expected_elements(
    variant: str, names: list[str], shapes: Mapping[str, tuple[int, ...]], step: int
) -> int:
    """Elements of a bucket's all-reduces, by the paper: (n + m) * rank for a compressed matrix."""
    elements = 0
    for name in names:
        rows, columns = shapes[name][0], math.prod(shapes[name][1:])
        rank = min(rows, columns, RANK.get(variant, 1))
        compressed = (rows + columns) * rank
        worth_it = compressed * RATE.get(variant, 2.0) < rows * columns
        elements += compressed if worth_it and step >= START.get(variant, 2) else rows * columns
    return elements


@every_variant
def test_what_is_handed_over_is_counted_exactly(variant: str, several: Results) -> None:
    for worker in several:
        result = worker["straight"][variant]
        shapes = result["shapes"]
        assert len(result["buckets"]) == STEPS
        before = after = 0
        for step, (buckets, reduced) in enumerate(zip(result["buckets"], result["reduced"], strict=True)):
            assert sorted(name for names, _ in buckets for name in names) == sorted(shapes)
            for names, handed_over in buckets:
                assert handed_over == expected_elements(variant, names, shapes, step)
            # What reached dist.all_reduce, in whatever parts.
            assert sum(reduced) == sum(handed_over for _, handed_over in buckets)
            if step >= START.get(variant, 2):
                before += sum(math.prod(shape) for shape in shapes.values())
                after += sum(reduced)
        assert after < 0.75 * before
        assert result["state"]["elements_before"] == before
        assert result["state"]["elements_after"] == after


# Checkpoints.


@every_variant
def test_a_run_resumed_in_new_processes_goes_on_as_if_it_had_never_stopped(
    variant: str, two: Results, resumed: Results
) -> None:
    for first, second in zip(two, resumed, strict=True):
        never, before, after = first["straight"][variant], first["stopped"][variant], second[variant]
        assert before["digests"] == never["digests"][:STOP]
        assert_same_state(after["loaded"], before["state"])
        assert after["digests"] == never["digests"][STOP:]
        assert_same_state(after["state"], never["state"])


@every_variant
def test_the_resumed_runs_met_another_layout_first(variant: str, two: Results, resumed: Results) -> None:
    """The trap was set: the buckets of a process's first step are not those of its others."""
    layouts = [[names for names, _ in buckets] for buckets in resumed[0][variant]["buckets"]]
    straight = [[names for names, _ in buckets] for buckets in two[0]["straight"][variant]["buckets"]]
    assert layouts[0] != layouts[1] == layouts[2] == straight[STOP + 1]
    assert straight[STOP] == straight[STOP + 1]
    assert (len(layouts[1]) > 2) == (variant in SEVERAL_BUCKETS)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def make(no_gpu: None) -> Callable[..., PowerSGD]:
    """Makes a PowerSGD of a matrix [12, 10] and a vector [12]."""
    parameters = dict(nn.Linear(10, 12).named_parameters())
    return lambda **options: PowerSGD(None, parameters, {}, Fields(**{"rank": 2, "start": 2, **options}))


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


def test_a_state_that_fits_is_taken_over_and_shares_no_memory(make: Callable[..., PowerSGD]) -> None:
    given, power = a_state(), make()
    power.load_state_dict(given)
    found = power.state_dict()
    assert_same_state(found, given)
    given["errors"]["weight"].zero_()
    given["qs"]["weight"].zero_()
    assert_same_state(found, a_state())


@in_turn(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2"),
        ({"version": None}, "version None"),
        ({"qs": None}, "without qs"),
        ({"iteration": -1}, "iteration -1"),
        ({"elements_after": 0.5}, "elements_after 0.5"),
        ({"errors": {"tail": torch.zeros(3)}}, "error of 'tail'"),
        ({"qs": {"tail": torch.zeros(3, 2)}}, "Q of 'tail'"),
        ({"qs": {"bias": torch.zeros(1, 1)}}, "Q of 'bias'"),
        ({"errors": {"weight": torch.zeros(12, 10)}}, "error of 'weight' is torch.float32 (12, 10)"),
        ({"errors": {"bias": torch.zeros(12).double()}}, "error of 'bias' is torch.float64 (12,)"),
        ({"qs": {"weight": torch.zeros(10, 3)}}, "Q of 'weight' is torch.float32 (10, 3)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(
    changes: dict[str, Any], words: str, make: Callable[..., PowerSGD]
) -> None:
    power = make()
    power.load_state_dict(a_state(iteration=7))
    with pytest.raises(ValueError, match=re.escape(words)):
        power.load_state_dict(a_state(**changes))
    assert_same_state(power.state_dict(), a_state(iteration=7))


@in_turn(("option", "words"), [("feedback", "error of 'weight'"), ("warm_start", "Q of 'weight'")])
def test_memory_that_a_run_does_not_keep_is_refused(
    option: str, words: str, make: Callable[..., PowerSGD]
) -> None:
    with pytest.raises(ValueError, match=words):
        make(**{option: False}).load_state_dict(a_state())


# What torch's hook would only say later, or too often.


@in_turn(
    ("options", "words"),
    [({"rank": 0}, "rank"), ({"seed": -1}, "seed"), ({"start": 1}, "start")],
)
def test_settings_out_of_range_are_refused(
    options: dict[str, Any], words: str, make: Callable[..., PowerSGD]
) -> None:
    with pytest.raises(ValueError, match=words):
        make(**options)


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
def test_parameters_that_torch_fails_on_are_refused_by_name(parameter: torch.Tensor, no_gpu: None) -> None:
    with pytest.raises(ValueError, match="'odd'"):
        PowerSGD(None, {"even": torch.zeros(2), "odd": parameter}, {}, Fields())


def test_the_cpus_memory_is_refused_where_torch_finds_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="CUDA_VISIBLE_DEVICES"):
        PowerSGD(None, {"weight": torch.zeros(2, 2)}, {}, Fields())


def test_torch_says_nothing_at_info(two: Results, resumed: Results) -> None:
    assert not [name for result in two for name in result["log"] if "powerSGD" in name]


def test_a_level_that_someone_chose_for_torchs_logger_stays(
    make: Callable[..., PowerSGD], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, root = powersgd.torchs.logger, logging.getLogger().level
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    make()
    assert logger.level == logging.DEBUG
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    make()
    assert logger.level == logging.WARNING
    assert logging.getLogger().level == root
