"""Every method through the hook, in real DDP over gloo: what must hold whatever is sent.

The lines are those of support/methods.py, the workers run method_scenarios.py; how groups of scenarios are
run is told in test_hook.py.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from cases import in_turn, run_all
from methods import CONSERVING, KINDS, METHODS

from taugrad.compressors.bucket.compressor import is_exempt
from taugrad.compressors.method import read_config

Results = list[dict[str, Any]]
"""By rank, what each scenario of a group returned."""

HERE = Path(__file__).parent
SHAPES = {"first": (17, 6), "middle": (11, 17), "head": (5, 11)}
SIZES = {f"{name}.weight": rows * columns for name, (rows, columns) in SHAPES.items()} | {
    f"{name}.bias": rows for name, (rows, _) in SHAPES.items()
}
ELEMENTS = sum(SIZES.values())

TWO, THREE = ("methods-2",), ("methods-3",)
every_family = in_turn("line", CONSERVING)
every_kind = in_turn("line", KINDS.values())


def by_own_messages(line: str) -> bool:
    return not line.startswith(("none", "powersgd"))


@pytest.fixture(scope="module")
def groups(scenarios: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Results]:
    """The results of a group; each runs once, even if it fails, all in one folder."""
    folder = tmp_path_factory.mktemp("methods")
    done: dict[str, Results | AssertionError] = {}

    def results(group: str) -> Results:
        if group not in done:
            try:
                workers = int(group[-1])
                done[group] = scenarios.run_group(HERE / "method_scenarios.py", group, workers, folder)
            except AssertionError as error:
                done[group] = error
        found = done[group]
        if isinstance(found, AssertionError):
            raise found
        return found

    return results


@pytest.fixture
def two(groups: Callable[[str], Results]) -> Results:
    return groups("methods-2")


@pytest.fixture(params=[2, 3], ids=["2-workers", "3-workers"])
def several(request: pytest.FixtureRequest, groups: Callable[[str], Results]) -> Results:
    return groups(f"methods-{request.param}")


def by_rank(results: Results, scenario: str, *keys: Any) -> list[Any]:
    """What each rank brought back from a scenario, under keys."""
    found: list[Any] = [result[scenario] for result in results]
    for key in keys:
        found = [each[key] for each in found]
    return found


def steps_of(results: Results, line: str) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The notes of one step after the other, by rank."""
    yield from enumerate(zip(*by_rank(results, "noted_steps", line, "steps"), strict=True))


CHECKS: list[tuple[Callable[..., None], tuple[str, ...]]] = []
"""What must hold of every method, and the groups whose results tell."""


def holds(*groups: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Lists what must hold of every line, judged by each of these groups of results."""

    def listed(check: Callable[..., None]) -> Callable[..., None]:
        CHECKS.extend((check, names) for names in groups)
        return check

    return listed


@pytest.mark.parametrize("line", METHODS)
def test_what_must_hold_of_every_method(line: str, groups: Callable[[str], Results]) -> None:
    run_all(
        (f"{check.__name__} ({', '.join(names)})", partial(check, line, *map(groups, names)))
        for check, names in CHECKS
    )


@holds(TWO, THREE)
def replicas_are_identical_after_every_step(line: str, several: Results) -> None:
    seen = set()
    for _, notes in steps_of(several, line):
        assert len({note["digest"] for note in notes}) == 1
        seen.add(notes[0]["digest"])
    assert len(seen) == 5, "some step changed nothing"


@holds(TWO, THREE)
def what_is_applied_and_what_is_kept_is_what_was_given(line: str, several: Results) -> None:
    """kept + workers x mean = decay x kept before + gradient; with momentum the velocity is the gradient."""
    config = read_config(line)
    decay, momentum = getattr(config, "decay", 1.0), getattr(config, "momentum", 0.0)
    before: list[dict[str, Any]] = [{"kept": {}, "velocities": {}} for _ in several]
    for step, notes in steps_of(several, line):
        if clipped(config, step):
            before = list(notes)
            continue
        for name, mean in notes[0]["applied"].items():
            keeps = name in notes[0]["kept"]
            owed = torch.zeros(SIZES[name], dtype=torch.float64)
            for note, last in zip(notes, before, strict=True):
                owed += note["given"][name].double()
                if name in last["kept"]:
                    owed += decay * last["kept"][name].double()
                if name in last["velocities"]:
                    owed += momentum * last["velocities"][name].double()
            found = mean.double() * len(notes)
            if keeps:
                found += sum(note["kept"][name].double() for note in notes)
            # Without a residual, as fp16 and bf16 are by default, only the rounding may be missing.
            tolerance = 1e-6 if keeps or not by_own_messages(line) or is_whole(config, name) else 2**-8
            scale = float(max(note["given"][name].abs().max() for note in notes)) + float(owed.abs().max())
            torch.testing.assert_close(found, owed, rtol=0, atol=tolerance * scale)
        before = list(notes)


def clipped(config: Any, step: int) -> bool:
    return getattr(config, "clip", None) is not None and (step + 1) % config.clip.every == 0


def is_whole(config: Any, name: str) -> bool:
    return hasattr(config, "exempt") and is_exempt(config.exempt, name, SIZES[name])


def test_a_residual_is_clipped_in_the_iterations_of_a_clip(several: Results) -> None:
    line = next(line for line in METHODS if "clip" in line)
    most = 2 * read_config(line).tau  # type: ignore[union-attr]
    largest = [
        max(float(kept.abs().max()) for note in notes for kept in note["kept"].values())
        for _, notes in steps_of(several, line)
    ]
    assert max(largest[1::2]) == pytest.approx(most)
    assert max(largest[0::2]) > most


@holds(TWO, THREE)
def velocities_are_forgotten_where_an_element_was_sent_and_only_there(line: str, several: Results) -> None:
    momentum = getattr(read_config(line), "momentum", 0)
    before: list[dict[str, Any]] = [{"velocities": {}} for _ in several]
    forgotten = 0
    for _, notes in steps_of(several, line):
        for note, last in zip(notes, before, strict=True):
            assert set(note["velocities"]) == (set(SIZES) if momentum else set())
            sent = {name: count for name, _, count, _ in note["layers"]}
            for name, velocity in note["velocities"].items():
                old = last["velocities"].get(name, torch.zeros(SIZES[name]))
                advanced = old * momentum + note["given"][name]
                assert bool(((velocity == advanced) | (velocity == 0)).all())
                zeros = int(((velocity == 0) & (advanced != 0)).sum())
                assert zeros <= sent[name]
                forgotten += zeros
        before = list(notes)
    assert (forgotten > 0) == (momentum > 0)


@holds(TWO, THREE)
def the_ledger_is_what_was_handed_over(line: str, several: Results) -> None:
    workers, config = len(several), read_config(line)
    sums: dict[str, int] = {}
    for step, notes in steps_of(several, line):
        for note in notes:
            assert {name: elements for name, elements, _, _ in note["layers"]} == SIZES
            for name, _, sent, bits in note["layers"]:
                check_bits(line, config, name, sent, bits)
        totals = notes[0]["totals"]
        assert all(note["totals"] == totals for note in notes)
        sent = sum(sent for note in notes for _, _, sent, _ in note["layers"])
        assert totals["steps"] == 1
        assert totals["skipped_steps"] == 0
        assert totals["elements"] == workers * ELEMENTS
        assert totals["sent"] == sent
        assert totals["paper_bits"] == sum(bits for note in notes for _, _, _, bits in note["layers"])
        if by_own_messages(line):
            ((*payloads,),) = zip(*(note["payloads"] for note in notes), strict=True)
            assert sent == sum(sum(payload["sent"]) for payload in payloads)
            assert totals["wire_bytes"] == sum(payload["size"] for payload in payloads)
            assert totals["received_bytes"] == (workers - 1) * totals["wire_bytes"]
        else:
            assert sent == workers * handed_to_all_reduces(line, step)
            assert totals["wire_bytes"] == 4 * sent
            assert totals["received_bytes"] == 2 * (workers - 1) * totals["wire_bytes"] // workers
        sums = {name: sums.get(name, 0) + count for name, count in totals.items()}
    assert by_rank(several, "noted_steps", line, "totals") == [sums] * workers
    assert 0 < sums["sent"] <= sums["elements"]


def check_bits(line: str, config: Any, name: str, sent: int, bits: int) -> None:
    expected = 32 if is_whole(config, name) else METHODS[line]
    if expected is not None:
        assert bits == sent * expected
    else:
        assert bits % max(sent, 1) == 0
        assert bits == 0 if sent == 0 else 1 <= bits // sent <= 16


def handed_to_all_reduces(line: str, step: int) -> int:
    """Elements that a worker hands over: in place of a matrix [rows, columns] P and Q, if they are less."""
    config = read_config(line)
    if config.kind != "powersgd" or step < config.start:
        return ELEMENTS
    count = 0
    for rows, columns in SHAPES.values():
        factors = config.rank * (rows + columns)
        worthwhile = factors * config.min_rate < rows * columns
        count += (factors if worthwhile else rows * columns) + rows
    return count


@holds(TWO, THREE)
def the_residuals_in_the_ledger_are_those_kept(line: str, several: Results) -> None:
    for _, notes in steps_of(several, line):
        for note in notes:
            if not by_own_messages(line):
                continue
            squares = sum(float(kept.double().square().sum()) for kept in note["kept"].values())
            assert note["residual_squares"] == pytest.approx(squares, rel=1e-4, abs=1e-12)
            assert note["keeps_residuals"] == bool(note["kept"])


@holds(TWO)
def every_parameter_with_a_tau_tells_it(line: str, two: Results) -> None:
    config = read_config(line)
    with_tau = {"wgt", "bgt", "qgt", "strom", "topk"}
    expected = {name for name in SIZES if config.kind in with_tau and not is_whole(config, name)}
    for step, notes in steps_of(two, line):
        for note in notes:
            assert set(note["taus"]) == expected
            if expected and isinstance(getattr(config, "tau", None), float):
                assert list(note["taus"].values()) == pytest.approx([config.tau] * len(expected))
            if "schedule({0: 0.01, 4: 0.03})" in line:
                assert note["taus"]["head.bias"] == pytest.approx(0.01 * 3 ** (step / 4))


@every_kind
def test_options_of_ddp_change_no_weight(line: str, two: Results) -> None:
    digests = [notes[0]["digest"] for _, notes in steps_of(two, line)]
    for option in ("static graph", "find unused"):
        assert by_rank(two, "other_ways_of_ddp", (line, option)) == [digests, digests], option


@holds((*TWO, *THREE))
def weights_do_not_depend_on_the_buckets(line: str, two: Results, three: Results) -> None:
    digests = [notes[0]["digest"] for _, notes in steps_of(two, line)]
    for other in by_rank(two, "never_stopped", line, "digests"):
        assert other[: len(digests)] == digests
    others = by_rank(three, "tiny_buckets", line)
    assert others[0] == others[1] == others[2]
    if by_own_messages(line):  # with three workers, a sum by all-reduce depends on an element's place
        assert others[0] == [notes[0]["digest"] for _, notes in steps_of(three, line)]


@every_kind
def test_the_sum_is_twice_the_mean_of_two_workers(line: str, two: Results) -> None:
    for result in by_rank(two, "sum_and_mean"):
        for name, mean in result[line, "mean"].items():
            assert torch.equal(result[line, "sum"][name], 2 * mean), name
    assert any(bool(mean.any()) for mean in two[0]["sum_and_mean"][line, "mean"].values())


@in_turn("dtype", ["torch.float64", "torch.bfloat16", "torch.float16"])
@every_family
def test_parameters_of_other_types_are_synchronized(line: str, dtype: str, two: Results) -> None:
    precision = {"torch.float64": 1e-6, "torch.bfloat16": 2**-8, "torch.float16": 2**-11}[dtype]
    owed = dict.fromkeys(SIZES, 0.0)
    for notes in zip(*by_rank(two, "other_types", (line, dtype)), strict=True):
        assert notes[0]["digest"] == notes[1]["digest"]
        for name, mean in notes[0]["applied"].items():
            assert str(mean.dtype) == dtype
            given = sum(note["given"][name].double() for note in notes) + owed[name]
            kept = sum(note["kept"][name].double() for note in notes)
            scale = 2 * float(mean.abs().max()) + 1e-3
            torch.testing.assert_close(2 * mean.double() + kept, given, rtol=0, atol=precision * scale)
            owed[name] = kept


def assert_nothing_lost(results: list[Any], workers: int) -> None:
    for name, applied in results[0]["applied"].items():
        given = sum(result["local"][name] for result in results)
        kept = sum(result["residuals"][name].double() for result in results if name in result["residuals"])
        found = workers * applied + (kept.view_as(given) if isinstance(kept, torch.Tensor) else 0)
        scale = float(sum(result["local"][name].abs().max() for result in results)) + 1e-3
        torch.testing.assert_close(found, given, rtol=0, atol=1e-5 * scale)


@every_family
def test_nothing_is_lost_of_parameters_that_some_or_all_workers_left_out(line: str, several: Results) -> None:
    results = by_rank(several, "unused_parameters", line)
    assert all(result["digests"] == results[0]["digests"] for result in results)
    assert_nothing_lost(results, len(several))


@in_turn("line", [*CONSERVING, "none"])
def test_a_step_that_is_skipped_costs_nothing(line: str, several: Results) -> None:
    results = by_rank(several, "nonfinite_skipped", line)
    for result in results:
        assert result["digests"] == results[0]["digests"]
        assert result["skipped"] == [2, 3, 5]
        assert [skipped for skipped, _ in result["noted"]] == [0, 0, 1, 2, 2, 3]
        where = [found for _, found in result["noted"]]
        own = by_own_messages(line)
        everyone = [("middle.weight", rank) for rank in range(len(several))]
        assert where[2] == (everyone if own else [("middle.weight", -1)])
        assert where[3] == [("head.bias", 1 if own else -1)]
        assert where[5] == [("first.weight", 1 if own else -1)]
        assert where[0] == where[1] == where[4] == []
        assert result["digests"][1] == result["digests"][2] == result["digests"][3]
        assert all(bool(torch.isfinite(kept).all()) for kept in result["residuals"].values())
    if line != "none":  # which keeps nothing for a later step
        assert_nothing_lost(results, len(several))


@in_turn("line", [*CONSERVING, "none", "powersgd(start=2)", "qgt(0.01, exempt=exempt(names=['*.bias']))"])
@in_turn("cap", [None, 0.0002], ids=["one-bucket", "several-buckets"])
def test_a_gradient_that_is_not_finite_is_refused_on_every_worker(
    line: str, cap: float | None, two: Results
) -> None:
    for failure in by_rank(two, "nonfinite_refused", (line, cap)):
        assert failure["kind"] == "NonFiniteGradient"
        assert failure["parameter"] == "middle.bias"
        assert failure["rank"] == (1 if by_own_messages(line) else -1)
        assert "middle.bias" in failure["raised"]
        assert failure["untouched"]


@holds((*TWO, "resumed-2"))
def a_run_resumed_in_a_new_process_is_one_that_never_stopped(
    line: str, two: Results, resumed: Results
) -> None:
    never = by_rank(two, "never_stopped", line)
    stopped = by_rank(resumed, "resumed", line)
    for rank in range(2):
        assert stopped[rank]["digests"] == never[rank]["digests"][3:]
        assert len(never[rank]["digests"]) == 6
        assert_same_state(but_for_wire(stopped[rank]["state"]), but_for_wire(never[rank]["state"]))


def but_for_wire(state: dict[str, Any]) -> dict[str, Any]:
    """DDP lays its buckets out anew after the first step of a process: messages are cut otherwise then."""
    cut_otherwise = ("wire_bytes", "received_bytes", "messages")
    totals = {name: count for name, count in state["totals"].items() if name not in cut_otherwise}
    return {**state, "totals": totals}


def assert_same_state(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, each in expected.items():
            assert_same_state(found[name], each)
    elif isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    else:
        assert found == expected


@holds(TWO)
def a_state_holds_plain_numbers_and_tensors(line: str, two: Results) -> None:
    state = two[0]["never_stopped"][line]["state"]
    assert state["version"] == 7
    assert set(state) == {
        "version",
        "rank",
        "workers",
        "residuals",
        "velocities",
        "memories",
        "powersgd",
        "totals",
    }
    for memory in state["memories"].values():
        assert {type(value) for value in memory.values()} <= {int, float, bool, list, type(None)}
    remembers = any(policy in line for policy in ("density(", "sidco(", "dl4j(", "allocate(", "law("))
    assert any(state["memories"].values()) == remembers
    assert all(type(value) is int for value in state["totals"].values())
