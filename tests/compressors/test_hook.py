"""The hook in real DDP over gloo, on the loopback interface.

Starting a process takes seconds and a scenario takes milliseconds, so the workers of scenarios.py run
all scenarios of a group in a row, and each test here judges what one of them brought back. Here are the
threshold rules, bit for bit as the papers' pseudo code has them, and what may go wrong; what holds for
every method is in test_hook_methods.py.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest
import torch
from cases import in_turn
from numpy.typing import NDArray

from taugrad.compressors.exchange.buckets import ExchangeForm

Results = list[dict[str, Any]]
"""By rank, what each scenario of a group returned."""

RULES = ("wgt", "bgt", "qgt")
SIMULATED = (*RULES, "strom")
KINDS = ("none", *RULES)
CODECS = ("auto", "packed32", "bitmap", "raw", "golomb_rice")
CAPS = (None, 0.0002)
ELEMENTS = 6 * 17 + 17 + 17 * 11 + 11 + 11 * 5 + 5
PARAMETERS = 6

every_rule = in_turn("rule", RULES)
every_kind = in_turn("kind", KINDS)


@pytest.fixture(scope="module")
def groups(scenarios: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    """The results of the group of so many workers; each group runs once."""
    done: dict[int, Results] = {}

    def results(workers: int) -> Results:
        if workers not in done:
            name = f"training-{workers}"
            script = Path(scenarios.__file__)
            done[workers] = scenarios.run_group(script, name, workers, tmp_path_factory.mktemp(name))
        return done[workers]

    return results


@pytest.fixture
def two(groups: Callable[[int], Results]) -> Results:
    return groups(2)


@pytest.fixture(params=[2, 3], ids=["2-workers", "3-workers"])
def several(request: pytest.FixtureRequest, groups: Callable[[int], Results]) -> Results:
    return groups(request.param)


@pytest.fixture(params=[1, 2, 3], ids=["1-worker", "2-workers", "3-workers"])
def any_number(request: pytest.FixtureRequest, groups: Callable[[int], Results]) -> Results:
    return groups(request.param)


def by_rank(results: Results, scenario: str, *keys: Any) -> list[Any]:
    """What each rank brought back from a scenario, under keys."""
    found: list[Any] = [result[scenario] for result in results]
    for key in keys:
        found = [each[key] for each in found]
    return found


def assert_all_equal(values: list[Any]) -> None:
    assert all(value == values[0] for value in values), values


# A simulation with the paper's pseudo code, in one process, without DDP, buckets, codecs and messages.


@dataclass
class Simulation:
    """What training comes to when each worker runs the transcription."""

    digests: list[str] = field(default_factory=list)
    residuals: list[dict[str, NDArray[np.float32]]] = field(default_factory=list)
    """By rank and parameter."""
    sent: list[list[int]] = field(default_factory=list)
    """By step and rank, how many elements were sent."""


@pytest.fixture(scope="module")
def simulated(scenarios: ModuleType, transcription: ModuleType) -> Callable[[str, int], Simulation]:
    """The simulation of a rule with so many workers; each is made once."""
    done: dict[tuple[str, int], Simulation] = {}

    def make(rule: str, workers: int) -> Simulation:
        simulation = Simulation()
        model = scenarios.make_model()
        optimizer = scenarios.make_optimizer(model)
        tau = np.float32(scenarios.TAU[rule])
        named = dict(model.named_parameters())
        simulation.residuals = [
            {name: np.zeros(p.numel(), np.float32) for name, p in named.items()} for _ in range(workers)
        ]
        for step in range(scenarios.STEPS):
            totals = {name: np.zeros(p.numel(), np.float32) for name, p in named.items()}
            simulation.sent.append([0] * workers)
            for rank in range(workers):
                optimizer.zero_grad()
                scenarios.loss_of(model, rank, step).backward()
                residuals = simulation.residuals[rank]
                for name, parameter in named.items():
                    gradient = parameter.grad.flatten().numpy()
                    outcome = transcription.run(rule, residuals[name], gradient, tau)
                    residuals[name] = outcome.kept
                    totals[name] += outcome.dense()
                    simulation.sent[-1][rank] += len(outcome.words)
            for name, parameter in named.items():
                mean = totals[name] / np.float32(workers)
                parameter.grad = torch.from_numpy(mean).view_as(parameter)
            optimizer.step()
            simulation.digests.append(scenarios.digest(model))
        return simulation

    def cached(rule: str, workers: int) -> Simulation:
        if (rule, workers) not in done:
            done[rule, workers] = make(rule, workers)
        return done[rule, workers]

    return cached


# Without compression.


def test_none_is_plain_ddp_bit_for_bit(any_number: Results) -> None:
    plain = by_rank(any_number, "none_and_plain", "plain")
    assert_all_equal(plain)
    assert by_rank(any_number, "none_and_plain", "hooked") == plain
    for digests in plain[0]:
        assert len(set(digests)) == len(digests)


def test_none_counts_everything_as_sent(any_number: Results) -> None:
    workers = len(any_number)
    elements = ELEMENTS * workers * 5
    for totals in by_rank(any_number, "none_and_plain", "totals"):
        reduced, rest = divmod(totals["messages"], max(1, 2 * (workers - 1) * workers))
        assert rest == 0  # a ring all-reduce passes a bucket's parts on 2 (N - 1) times
        assert reduced >= 5 or workers == 1
        assert totals == {
            "steps": 5,
            "skipped_steps": 0,
            "elements": elements,
            "sent": elements,
            "paper_bits": 32 * elements,
            "wire_bytes": 4 * elements,
            "received_bytes": 2 * (workers - 1) * 4 * ELEMENTS * 5,
            "messages": totals["messages"],
        }
    for layers in by_rank(any_number, "none_and_plain", "layers"):
        assert sorted(layers)[0] == ("first.bias", 17, 17)
        assert sum(elements for _, elements, _ in layers) == ELEMENTS


def test_a_tau_below_everything_is_plain_ddp_to_rounding(several: Results) -> None:
    for result in by_rank(several, "everything_sent_and_plain"):
        for hooked, plain in zip(result["hooked"], result["plain"], strict=True):
            torch.testing.assert_close(hooked, plain, rtol=1e-5, atol=1e-7)
        assert result["totals"]["sent"] == result["totals"]["elements"]


# The rules.


@in_turn("rule", SIMULATED)
def test_weights_and_residuals_are_those_of_the_papers_pseudo_code(
    rule: str, any_number: Results, simulated: Callable[[str, int], Simulation]
) -> None:
    workers = len(any_number)
    if workers == 2:
        found = by_rank(any_number, "every_rule_and_codec", (rule, "auto"))
    else:
        found = by_rank(any_number, "every_rule", rule)
    simulation = simulated(rule, workers)
    for rank in range(workers):
        assert found[rank]["digests"] == simulation.digests
        residuals = found[rank]["residuals"]
        assert residuals.keys() == simulation.residuals[rank].keys()
        for name, kept in simulation.residuals[rank].items():
            assert residuals[name].numpy().tobytes() == kept.tobytes(), name
    sent = [count for step in simulation.sent for count in step]
    assert 0 < sum(sent) < ELEMENTS * len(sent)


@every_rule
def test_replicas_are_identical_whatever_the_codec(rule: str, two: Results) -> None:
    digests = [
        found["digests"]
        for result in by_rank(two, "every_rule_and_codec")
        for (each, _), found in result.items()
        if each == rule
    ]
    assert len(digests) == 2 * len(CODECS)
    assert_all_equal(digests)
    assert len(set(digests[0])) == 5


def expected_size(rule: str, codec: str, k: int) -> int:
    """Bytes of a message of k elements, by docs of the formats and not by their code."""
    value_bytes = {"wgt": 4, "bgt": 0, "qgt": 1}[rule]
    dense_bytes = {"wgt": 4, "bgt": 1, "qgt": 2}[rule]
    sizes = {
        "packed32": 4 * k + value_bytes * k,
        "bitmap": -(-ELEMENTS // 8) + (0 if rule == "wgt" else -(-k // 8)) + value_bytes * k,
        "raw": dense_bytes * ELEMENTS,
    }
    return 28 + (0 if rule == "wgt" else 4) + sizes[codec]  # a tau


@every_rule
@in_turn("codec", ["packed32", "bitmap", "raw"])
def test_totals_are_what_an_independent_count_gives(
    rule: str, codec: str, two: Results, simulated: Callable[[str, int], Simulation]
) -> None:
    by_step = simulated(rule, 2).sent
    sent = sum(sum(step) for step in by_step)
    wire = 0
    for step in by_step:
        wire += sum(expected_size(rule, codec, k) for k in step)
    expected = {
        "steps": 5,
        "skipped_steps": 0,
        "elements": ELEMENTS * 2 * 5,
        "sent": sent,
        "paper_bits": sent * {"wgt": 32, "bgt": 1, "qgt": 8}[rule],
        "wire_bytes": wire,
        "received_bytes": wire,  # from the only other worker
        "messages": 2 * 5,
    }
    assert by_rank(two, "every_rule_and_codec", (rule, codec), "totals") == [expected, expected]


@every_rule
def test_auto_counts_the_same_and_is_no_larger_than_any_codec(rule: str, two: Results) -> None:
    totals = {codec: dict(two[0]["every_rule_and_codec"][rule, codec]["totals"]) for codec in CODECS}
    sizes = {codec: each.pop("wire_bytes") for codec, each in totals.items()}
    assert {codec: each.pop("received_bytes") for codec, each in totals.items()} == sizes
    assert_all_equal(list(totals.values()))
    assert sizes["auto"] == min(sizes.values())
    assert len(set(sizes.values())) > 3


def test_a_steps_ledger_tells_that_step_alone(
    two: Results, simulated: Callable[[str, int], Simulation], scenarios: ModuleType
) -> None:
    by_step = simulated("qgt", 2).sent
    for rank, result in enumerate(by_rank(two, "a_ledger_by_step")):
        for step, counts in zip(result["steps"], by_step, strict=True):
            assert step["totals"]["steps"] == 1
            assert step["totals"]["sent"] == sum(counts)
            assert sum(sent for _, _, sent in step["layers"]) == counts[rank]
            assert sum(elements for _, elements, _ in step["layers"]) == ELEMENTS
            assert sorted(name for name, _, _ in step["layers"]) == sorted(
                name for name, _ in scenarios.make_model().named_parameters()
            )
            assert step["residual_squares"] == pytest.approx(step["squares"], rel=1e-4)
            assert step["taus"] == [float(np.float32(scenarios.TAU["qgt"]))] * PARAMETERS
            assert all(seconds > 0 for seconds in step["seconds"])
        for name, total in result["totals"].items():
            assert total == sum(step["totals"][name] for step in result["steps"])


@every_rule
def test_residuals_stay_with_their_parameters_when_ddp_rebuilds_its_buckets(
    rule: str, several: Results, simulated: Callable[[str, int], Simulation]
) -> None:
    simulation = simulated(rule, len(several))
    for rank, result in enumerate(by_rank(several, "several_buckets", rule)):
        layouts = result["layouts"]
        starts = [i for i, (index, _) in enumerate(layouts) if index == 0] + [len(layouts)]
        steps = [layouts[low:high] for low, high in pairwise(starts)]
        assert len(steps) == 5
        assert steps[0] != steps[1] == steps[2]
        assert len(steps[1]) > 2
        assert sorted(result["held"]) == sorted(result["buffers"][-len(steps[-1]) :])  # no older ones
        assert len(result["taus"]) == PARAMETERS
        assert result["digests"] == simulation.digests
        for name, kept in simulation.residuals[rank].items():
            assert result["residuals"][name].numpy().tobytes() == kept.tobytes(), name


@every_rule
def test_workers_may_have_different_taus(rule: str, two: Results) -> None:
    assert_all_equal(by_rank(two, "different_taus", rule, "digests"))
    first, second = by_rank(two, "different_taus", rule, "taus")
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_accumulation_without_sync_is_one_larger_gradient(two: Results) -> None:
    results = by_rank(two, "accumulation_without_sync")
    for result in results:
        assert result["quiet"]["steps"] == 0
        assert result["quiet"]["wire_bytes"] == 0
        assert result["totals"]["steps"] == 1
        assert result["totals"]["elements"] == 2 * ELEMENTS
        for name, accumulated in result["accumulated"].items():
            torch.testing.assert_close(accumulated, result["larger"][name], rtol=1e-4, atol=1e-7)
            mean = (results[0]["local"][name] + results[1]["local"][name]) / 2
            torch.testing.assert_close(accumulated.double(), mean, rtol=1e-5, atol=1e-8)
            assert not torch.allclose(accumulated, result["own"][name], rtol=1e-3)


@in_turn("rule", ["wgt", "qgt"])
def test_two_models_at_once_keep_apart(rule: str, two: Results) -> None:
    for name in ("digests", "totals"):
        together = by_rank(two, "two_models_at_once", rule, name)
        assert together == by_rank(two, "every_rule_and_codec", (rule, "auto"), name)


@every_rule
def test_a_tau_above_everything_sends_nothing_and_stops_nothing(rule: str, any_number: Results) -> None:
    workers = len(any_number)
    for result in by_rank(any_number, "tau_above_everything", rule):
        assert set(result["digests"]) == {result["before"]}
        assert all(gradient.count_nonzero() == 0 for gradient in result["gradients"].values())
        assert result["totals"]["sent"] == 0
        assert result["totals"]["elements"] == 3 * workers * ELEMENTS
        assert result["totals"]["wire_bytes"] == 3 * workers * (28 + (0 if rule == "wgt" else 4))
        for name, kept in result["residuals"].items():
            expected = result["local"][name].flatten().float()
            torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-7)


@every_kind
def test_an_all_zero_gradient_changes_nothing(kind: str, two: Results) -> None:
    for result in by_rank(two, "all_zero_gradient", kind):
        assert result["digests"] == [result["before"]]
        assert all(not total.any() for total in result["applied"].values())
        if kind != "none":
            assert result["totals"]["sent"] == 0
            assert all(not residual.any() for residual in result["residuals"].values())


@every_kind
@in_turn("cap", CAPS, ids=["one-bucket", "several-buckets"])
def test_a_parameter_without_elements_is_no_trouble(kind: str, cap: float | None, two: Results) -> None:
    results = by_rank(two, "a_parameter_without_elements", (kind, cap))
    assert_all_equal([result["digests"] for result in results])
    assert len(set(results[0]["digests"])) == 3
    for result in results:
        assert result["totals"]["elements"] == 3 * 2 * (ELEMENTS + 5)
        if kind != "none":
            assert result["residuals"]["nothing"].shape == (0,)


def test_gradient_statistics_are_noted_in_the_steps_that_were_asked_for(two: Results) -> None:
    for result in by_rank(two, "observed_statistics"):
        seen, first = result["seen"], result["first"]
        assert seen[0].keys() == first.keys()
        assert seen[1] == seen[0]
        assert seen[2].keys() == seen[0].keys()
        assert seen[2] != seen[0]
        assert seen[3] == seen[2]
        for name, statistics in seen[0].items():
            magnitudes = first[name].abs().numpy()
            expected = np.quantile(magnitudes, [0.5, 0.9, 0.99, 0.999], method="inverted_cdf")
            rms = np.sqrt(np.mean(np.square(magnitudes, dtype=np.float64)))
            assert statistics == pytest.approx([*expected, rms, np.mean(magnitudes == 0)], rel=1e-4)


# Forms of exchange.


@in_turn("name", ["growing", "refused"])
def test_no_result_depends_on_how_messages_go(name: str, several: Results) -> None:
    for buckets in ("many", "one"):
        found = by_rank(several, "every_form_of_exchange", ("hierarchical", buckets, name))
        expected = by_rank(several, "every_form_of_exchange", ("exact", buckets, name))
        for one, other in zip(found, expected, strict=True):
            assert one["digests"] == other["digests"] == found[0]["digests"]
            assert one["skipped"] == other["skipped"] == ([2] if name == "refused" else [])
            for parameter, residual in other["residuals"].items():
                assert torch.equal(one["residuals"][parameter], residual)
            counted = ("elements", "sent", "paper_bits", "messages", "skipped_steps", "steps")
            assert {key: one["totals"][key] for key in counted} == {
                key: other["totals"][key] for key in counted
            }
            assert one["totals"] == found[0]["totals"]


def test_a_worker_receives_what_all_others_hand_over(several: Results) -> None:
    for name in ("growing", "refused"):
        totals = by_rank(several, "every_form_of_exchange", ("exact", "one", name), "totals")[0]
        assert totals["received_bytes"] == (len(several) - 1) * totals["wire_bytes"]


@in_turn("form", get_args(ExchangeForm))
def test_a_damaged_message_is_refused_in_every_form(form: str, several: Results) -> None:
    for failure in by_rank(several, "every_form_of_exchange", (form, "damaged")):
        assert failure["kind"] == "CorruptMessage"
        assert "the message of worker 0" in failure["text"]
        assert failure["text"] in failure["raised"]
        assert failure["untouched"]


# What goes wrong.


TAMPERED = {
    "flipped bit": "the checksum does not match",
    "truncated": "bytes of body, there are",
    "nothing at all": "0 bytes are less than a header",
    "of another bucket": f"an update of 3 elements where {ELEMENTS} are due",
    "a refusal of another bucket": f"a refusal of 0 elements where {ELEMENTS} are due",
    "a refusal of an unknown parameter": "worker 0 names parameter 99",
}


@in_turn("tampering", TAMPERED)
@in_turn("mode", ["refuse", "skip"])
def test_a_damaged_message_fails_on_every_worker_and_nothing_is_applied(
    tampering: str, mode: str, two: Results
) -> None:
    for failure in by_rank(two, "corrupt_messages", (tampering, mode)):
        assert failure["kind"] == "CorruptMessage"
        assert "worker 0" in failure["text"]
        assert TAMPERED[tampering] in failure["text"]
        assert failure["text"] in failure["raised"]
        assert failure["untouched"]
        for name, own in failure["own"].items():
            assert torch.equal(failure["gradients"][name], own), "not the worker's own gradient any more"


DISAGREEMENTS = {
    "rule": "rank 0: kind = wgt, rank 1: kind = bgt",
    "none": "rank 0: kind = none, rank 1: kind = wgt",
    "powersgd": "rank 0: kind = powersgd, rank 1: kind = none",
    "reduction": "rank 0: reduction = mean, rank 1: reduction = sum",
    "reduction of none": "rank 0: reduction = mean, rank 1: reduction = sum",
    "tau": "rank 0: tau.target = 0.1, rank 1: tau.target = 0.2",
    "seed": "rank 0: seed = 1, rank 1: seed = 2",
    "exchange": "rank 0: exchange = exact, rank 1: exchange = hierarchical; "
    "rank 0: no sites, rank 1: sites = by host",
    "unused": "rank 0: find_unused_parameters = True, rank 1: find_unused_parameters = False",
    "names": "rank 0: parameter 0 = first.weight float32 [5, 6], "
    "rank 1: parameter 0 = other.weight float32 [5, 6]; "
    "rank 0: parameter 1 = first.bias float32 [5], rank 1: parameter 1 = other.bias float32 [5]; "
    "rank 0: bucket 0, parameter 0 = first.weight, rank 1: bucket 0, parameter 0 = other.weight; "
    "and 1 more",
    "steps": "rank 0: steps done = 2, rank 1: steps done = 0",
}


@in_turn("way", DISAGREEMENTS)
def test_workers_that_do_not_do_the_same_all_fail_at_once_with_the_difference(way: str, two: Results) -> None:
    for failure in by_rank(two, "workers_that_disagree", way):
        assert failure["kind"] == "WorkersDisagree"
        assert failure["text"] == f"the workers do not agree: {DISAGREEMENTS[way]}"
        assert failure["text"] in failure["raised"]
        assert failure["untouched"]
        assert failure["seconds"] < 30, "it waited for the group's timeout, which is 60 s"


def test_workers_whose_buckets_differ_all_fail_likewise(two: Results) -> None:
    failures = by_rank(two, "workers_that_disagree", "buckets")
    assert_all_equal([failure["text"] for failure in failures])
    assert "rank 1: no bucket 0, parameter" in failures[0]["text"]
    assert all(failure["seconds"] < 30 for failure in failures)


# Checkpoints.


@pytest.fixture
def misfits(groups: Callable[[int], Results]) -> dict[str, Any]:
    found: dict[str, Any] = groups(1)[0]["states_that_do_not_fit"]
    return found


@in_turn(
    ("misfit", "words"),
    [
        ("version", "version 1"),
        ("before", "version 6 of a state; this program reads 7"),
        ("rank", "the state of rank 1 of 2 workers, this is rank 0 of 1"),
        ("workers", "the state of rank 0 of 3 workers, this is rank 0 of 1"),
        ("no rank", "without rank"),
        ("no version", "version None"),
        ("no velocities", "without velocities"),
        ("velocity", "the velocity of 'head.bias' is torch.float32 (4,)"),
        ("memory", "'tail.weight'"),
        ("other policy", "a memory of 'head.bias' with tau, which is unknown"),
        ("totals", "a ledger has"),
        ("method", "of another method than wgt(tau=0.02)"),
        ("unknown name", "'tail.weight'"),
        ("size", "'head.bias' is torch.float32 (4,)"),
        ("shape", "'head.weight' is torch.float32 (11, 5)"),
        ("type", "'head.bias' is torch.float64 (5,)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(
    misfit: str, words: str, misfits: dict[str, Any]
) -> None:
    assert words in misfits["raised"][misfit]


def test_a_refused_state_changes_nothing_and_a_loaded_one_shares_no_memory(misfits: dict[str, Any]) -> None:
    assert misfits["untouched"]
    assert misfits["shared"] == []
