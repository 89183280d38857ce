"""What every mode promises, by one table: replicas alike, simulated workers like real ones, exact resumes.

Legend: N = 3 workers, P parameters, T iterations.
"""

import math

import cases
import mode_specs
import pytest
import torch
from cases import in_turn
from mode_runs import same, train, train_really
from mode_specs import BASE, EPOCHS, ITERATIONS, LONG, MIDDLE, PARAMETERS, WORKERS, Spec, simulating


def chosen(group: dict[str, Spec]) -> dict[str, Spec]:
    return {name: spec for name, spec in group.items() if cases.everything or name not in LONG}


HOOKED, SITED, IN_ROUNDS, ASYNC, ON_SCHEDULE, HYBRID = (
    chosen(getattr(mode_specs, group))
    for group in ("HOOKED", "SITED", "IN_ROUNDS", "ASYNC", "ON_SCHEDULE", "HYBRID")
)
FREE = mode_specs.FREE
DENSE = {"allgather: none": BASE}
TWO = {"of two: none": BASE | {"workers": {"count": 2}}}
COLLECTIVE, SHARDED = (
    {
        f"{pattern}: linear": BASE
        | {"sync": {"mode": "gradients", "pattern": pattern}, "compressor": "linear(4)"}
    }
    for pattern in ("collective", "sharded")
)
ALIKE = HOOKED | SITED | IN_ROUNDS | ASYNC | ON_SCHEDULE | HYBRID
"""Real workers and simulated ones come to the same bits."""
GRADIENTS = HOOKED | SITED | IN_ROUNDS
COUNTED = HOOKED | SITED | IN_ROUNDS | ASYNC | ON_SCHEDULE | HYBRID
"""Every process knows what went over which link."""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    return train_really(ALIKE | FREE | DENSE | TWO | COLLECTIVE, tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    specs = {name: simulating(spec) for name, spec in (ALIKE | TWO | SHARDED).items()}
    (run,) = train(specs, 1, tmp_path_factory.mktemp("simulated") / "runs")
    return run


@in_turn("name", ALIKE | FREE | COLLECTIVE)
def test_replicas_are_alike_to_the_bit(name, real):
    first, *others = real[name]
    for other in others:
        assert same(first, other)
        assert same(first["resumed"], other["resumed"])
        for what in ("totals", "evaluations"):
            assert first[what] == other[what]


@in_turn("name", ALIKE)
def test_simulated_workers_end_with_the_bits_of_real_ones(name, real, simulated):
    first, actual = real[name][0], simulated[name]
    assert same(first, actual)
    assert all(first[what] == actual[what] for what in ("totals", "evaluations"))
    squares = "comm/residual_rms"
    assert [step for step, _ in first["logged"]] == [step for step, _ in actual["logged"]]
    for (_, one), (_, other) in zip(first["logged"], actual["logged"], strict=True):
        # The hook's passes add squares up in an order of their own, and so do means over processes.
        assert one.get(squares, 0) == pytest.approx(other.get(squares, 0), rel=1e-5)
        assert one | {squares: 0} == other | {squares: 0}


@in_turn("name", ALIKE)
def test_a_run_that_goes_on_from_its_middle_ends_the_same(name, real, simulated):
    for whole in (*real[name], simulated[name]):
        assert same(whole, whole["resumed"])
        assert all(whole[what] == whole["resumed"][what] for what in ("totals", "metrics"))
    first = real[name][0]
    assert first["resumed"]["logged"] == [entry for entry in first["logged"] if entry[0] > MIDDLE]


def test_free_workers_make_all_their_steps(real):
    for name in FREE:
        result, resumed = real[name][0], real[name][0]["resumed"]
        assert result["totals"]["steps"] == resumed["totals"]["steps"] == ITERATIONS
    logged = [metrics for _, metrics in real["free: quorum"][0]["logged"] if "round/members" in metrics]
    assert all(row["round/members"] + row["round/left_out"] == 4 for row in logged)
    assert logged


@in_turn("name", ON_SCHEDULE)
def test_workers_on_a_schedule_are_late_away_and_lost(name, simulated):
    logged = [metrics for _, metrics in simulated[name]["logged"]]
    for what in ("left_out", "lost", "caught_up_bytes"):
        assert sum(row.get(f"round/{what}", 0) for row in logged) > 0, what


def test_staleness_is_logged(simulated):
    logged = simulated["async: none"]["logged"]
    # While the slow worker makes a step the fast one makes four.
    assert max(metrics.get("comm/staleness_most", 0) for _, metrics in logged) >= 4
    by_worker = [metrics for _, metrics in logged if "worker/0/staleness" in metrics]
    assert len(by_worker) == 4  # the drains: two checkpoints and two epochs
    assert all(f"worker/{rank}/staleness" in by_worker[0] for rank in range(WORKERS))


def test_collectives_end_with_the_bits_of_the_pattern_sharded(real, simulated):
    (name,), (other,) = COLLECTIVE, SHARDED
    assert same(real[name][0], simulated[other])
    assert same(real[name][0], real[name][0]["resumed"])


def test_uncompressed_simulation_of_two_workers_is_ddp_to_the_bit(real, simulated):
    (name,) = TWO
    assert same(real[name][0], simulated[name])
    assert real[name][0]["totals"] == simulated[name]["totals"]
    assert real[name][0]["links"] is simulated[name]["links"] is None  # the transport decides about them


# What goes over which link.


@in_turn("name", COUNTED)
def test_every_process_knows_all_links_and_their_sums_are_the_ledger_s(name, real, simulated):
    expected = simulated[name]["links"]
    for actual in (*real[name], simulated[name]):
        for links in (actual["links"], actual["resumed"]["links"]):
            assert all(torch.equal(links[what], expected[what]) for what in ("bytes", "messages"))
        assert int(expected["bytes"].sum()) == actual["totals"]["received_bytes"]
        assert int(expected["messages"].sum()) == actual["totals"]["messages"]


@in_turn("name", IN_ROUNDS)
def test_messages_take_the_links_that_the_pattern_has(name, real):
    pattern = pattern_of(name)
    links = real[name][0]["links"]
    taken = {(i, j) for i, j in links["messages"].nonzero().tolist()}
    every = {(i, j) for i in range(WORKERS) for j in range(WORKERS) if i != j}
    expected = {
        "allgather": every,
        "sharded": every,
        "ring": {(i, (i + 1) % WORKERS) for i in range(WORKERS)},
        "parameter_server": {link for link in every if 0 in link},
        "hierarchical": every - {(1, 2)},  # 0 hands worker 1's on
    }
    assert taken == expected[pattern]
    assert {(i, j) for i, j in links["bytes"].nonzero().tolist()} == taken


def pattern_of(name: str) -> str:
    """Who sends to whom in a spec."""
    return str(GRADIENTS[name]["sync"].get("pattern", "allgather"))


def exchanges(name: str) -> int:
    """How often a spec's workers exchange anything."""
    sync = GRADIENTS[name]["sync"]
    if sync["mode"] != "weights":
        return ITERATIONS
    every, fragments = sync.get("every"), sync.get("fragments", 1)
    if not every:
        return EPOCHS * fragments
    # The last fragment after `every` steps, the others earlier; and in the end what has moved since.
    firsts = (math.ceil(every * number / fragments) for number in range(1, fragments + 1))
    return sum(1 + math.ceil((ITERATIONS - first) / every) for first in firsts)


@in_turn("name", GRADIENTS)
def test_messages_are_as_many_as_the_pattern_has(name, real):
    a_time = {
        "allgather": WORKERS * (WORKERS - 1),
        "hierarchical": WORKERS * (WORKERS - 1),
        "ring": 2 * (WORKERS - 1) * WORKERS,
        "parameter_server": 2 * (WORKERS - 1),
        "sharded": 2 * WORKERS * (WORKERS - 1),
    }
    assert real[name][0]["totals"]["messages"] == exchanges(name) * a_time[pattern_of(name)]


@pytest.mark.parametrize(
    ("between_sites", "straight"),
    [
        ("hierarchical: strom", "allgather: strom"),
        ("hierarchical: clipped", "allgather: clipped"),
        ("differences, hierarchical: wgt", "differences: wgt"),
    ],
)
def test_rounds_between_sites_come_to_the_same_bits(between_sites, straight, real):
    assert same(real[between_sites][0], real[straight][0])
    result, exact = (real[name][0]["totals"] for name in (between_sites, straight))
    assert (result["sent"], result["paper_bits"]) == (exact["sent"], exact["paper_bits"])
    # One worker hands messages on: of sites [0, 2] and [1] worker 1's go to 0, who hands them to 2.
    assert result["wire_bytes"] > exact["wire_bytes"]


@pytest.mark.parametrize("mode", ["ring", "server", "sharded"])
def test_without_compression_every_mode_trains_as_ddp_does_and_weighs_what_its_formula_says(mode, real):
    """Received by all workers: 2 (N - 1) P floats; headers (28 bytes) and numbers told beside them."""
    actual = real[f"{mode}: none"]
    for key, expected in real["allgather: none"][0]["weights"].items():
        torch.testing.assert_close(actual[0]["weights"][key], expected, rtol=1e-4, atol=1e-5)
    nbytes = ITERATIONS * 2 * (WORKERS - 1) * 4 * PARAMETERS + 28 * actual[0]["totals"]["messages"]
    assert sum(int(worker["link_bytes"].sum()) for worker in actual) == nbytes


def test_exchanges_take_place_every_few_steps_and_at_the_end(real):
    logged = real["differences: wgt"][0]["logged"]
    sending = [step for step, metrics in logged if metrics.get("comm/wire_bytes")]
    assert sending == [4, 8, 12, 16, 18]


def test_gathering_the_whole_model_is_in_no_ledger(real):
    """For an evaluation or a checkpoint: after the iterations 7, 9, 14 and 18."""
    features, neurons, classes = 50, 500, 10  # of LeNet for 16 x 16
    for rank, result in enumerate(real["b, per worker"]):
        assert result["sent"]["messages"] > int(result["link_messages"].sum())
        rows = [size * (rank + 1) // WORKERS - size * rank // WORKERS for size in (neurons, classes)]
        share = 4 * (rows[0] * (features + 1) + rows[1] * (neurons + 1))
        gathered = 4 * (WORKERS - 1) * share
        assert result["sent"]["bytes"] == int(result["links"]["bytes"][rank].sum()) + gathered
