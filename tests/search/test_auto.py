"""`taugrad auto`: what a density costs and the reverse, which rule, refusals, the way to a tolerance."""

import math
import re
from shutil import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taugrad import cli
from taugrad.compressors import message
from taugrad.compressors.update import Update
from taugrad.platform.reading import SpecError
from taugrad.platform.spec import RunSpec
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import finish_run, open_client, start_run
from taugrad.search.auto import (
    DENSITIES,
    FAILED,
    OK,
    Attempt,
    Goal,
    attempts,
    missing,
    rounded_down,
    run_auto,
    spent_line,
)
from taugrad.search.auto_specs import at_density, by_law, without_compression
from taugrad.search.costs import DENSEST, SPARSEST, CannotEstimate, Cost, cost_of
from taugrad.search.finished import finished
from taugrad.search.law.fitting import SHIPPED, FittedLaw, LawError, read_law, write_law
from taugrad.search.objective import Outcome

DIGITS = {
    "experiment": "auto",
    "data": {"kind": "digits"},
    "model": {"kind": "mlp", "widths": [64]},
    "training": {"epochs": 2, "batch_size": 64},
    "sync": {"mode": "simulated"},
}


def spec(**fields) -> RunSpec:
    return RunSpec.model_validate(DIGITS | fields)


costs = st.builds(
    Cost,
    layers=st.lists(st.integers(1, 10**7), min_size=1, max_size=20).map(tuple),
    whole=st.integers(0, 10**5),
    buckets=st.integers(1, 4),
    own_messages=st.booleans(),
    value_bits=st.sampled_from([1.0, 4.0, 8.0, 32.0]),
    sendings=st.integers(1, 10**6),
)
densities = st.floats(math.log(SPARSEST), math.log(DENSEST)).map(math.exp)


@settings(deadline=None, max_examples=50)
@given(costs, densities, densities)
def test_bytes_grow_with_the_density(cost, one, other):
    low, high = sorted((one, other))
    assert cost.wire_bytes(0) <= cost.wire_bytes(low) <= cost.wire_bytes(high) * (1 + 1e-12)


@settings(deadline=None, max_examples=50)
@given(costs, densities)
def test_a_budget_leads_to_the_density_that_takes_it(cost, density):
    budget = cost.wire_bytes(density) * (1 + 1e-9)
    found = cost.density(budget)
    assert cost.wire_bytes(found) <= budget
    assert found == DENSEST or cost.wire_bytes(found * 1.0001) > budget * (1 - 1e-6)


@settings(deadline=None, max_examples=50)
@given(costs)
def test_the_least_budget_is_enough_and_less_is_refused(cost):
    least = cost.least_mb()
    assert float(f"{least:.4g}") == pytest.approx(least, rel=1e-9)
    assert SPARSEST <= cost.density(1e6 * least) <= DENSEST
    with pytest.raises(ValueError, match=r"headers alone take .* is the least possible"):
        cost.density(0.99 * cost.wire_bytes(0))


@settings(deadline=None, max_examples=50)
@given(st.floats(SPARSEST, DENSEST))
def test_a_shown_density_is_no_larger_and_not_much_smaller(density):
    short = rounded_down(density)
    assert 0.98 * density <= short <= density * (1 + 1e-9)
    assert float(f"{short:.3g}") == short


@pytest.mark.parametrize("density", [1e-3, 1e-2, 0.1])
def test_the_estimate_is_that_of_real_messages(density):
    n, rng = 400_000, np.random.default_rng(0)
    positions = np.flatnonzero(rng.random(n) < density).astype(np.uint32)
    words = positions << 1 | rng.integers(0, 2, positions.size, np.uint32)
    update = Update("strom", n, np.float32(0.1), words, np.empty(0, np.uint8))
    size = message.write(update, "golomb_rice").size + 8
    cost = Cost((n,), whole=0, buckets=1, own_messages=True, value_bits=1.0, sendings=1, swing=1.0)
    assert cost.wire_bytes(density) == pytest.approx(size, rel=0.04)


def test_a_spec_is_counted():
    cost = cost_of(spec(compressor="strom(0.1) | golomb_rice"))
    assert cost.layers == (64 * 64, 64, 64 * 10, 10)
    assert (cost.whole, cost.buckets, cost.own_messages, cost.value_bits) == (0, 1, True, 1.0)
    assert cost.sendings % 4 == 0  # 2 workers, 2 epochs
    assert cost.sendings // 4 == pytest.approx(1797 * 0.8 / 64, abs=1)
    exempt = cost_of(spec(compressor={"kind": "wgt", "tau": 0.1, "exempt": {"smaller_than": 100}}))
    assert (exempt.layers, exempt.whole) == ((64 * 64, 64 * 10), 64 + 10)
    assert (exempt.own_messages, exempt.value_bits) == (False, 32.0)
    assert exempt.elements == cost.elements == 4810


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"sync": {"mode": "ring"}}, "sync.mode = ring"),
        ({"sync": {"mode": "simulated", "of": {"mode": "sharded"}}}, "sync.of.mode = sharded"),
        ({"sync": {"mode": "allgather", "exchange": "one_shot"}}, "sync.exchange = one_shot"),
        ({"compressor": "strom(0.1) | bitmap"}, "compressor.codec = bitmap"),
        ({"training": {"batch_growth": {"kind": "adabatch"}}}, "batch_growth.kind = adabatch"),
        ({"compressor": "topk(0.1)"}, "compressor.kind = topk"),
    ],
)
def test_what_cannot_be_estimated_is_named(fields, problem):
    with pytest.raises(CannotEstimate, match=problem):
        cost_of(spec(**{"compressor": "strom(0.1)", **fields}))


@pytest.mark.parametrize(
    ("given_line", "kind", "codec", "quantize"),
    [
        ("none", "strom", "golomb_rice", None),
        ("topk(0.01)", "strom", "golomb_rice", None),
        ("bgt(0.1) | bitmap", "bgt", "bitmap", None),
        ("wgt(dl4j()) | quantile(bits=4) | golomb_rice", "wgt", "golomb_rice", "quantile"),
    ],
)
def test_the_rule_is_the_specs_own_where_it_has_a_threshold(given_line, kind, codec, quantize):
    method = at_density(spec(compressor=given_line), 0.02).compressor
    assert (method.kind, method.codec, method.tau.kind, method.tau.density) == (kind, codec, "allocate", 0.02)
    assert getattr(getattr(method, "quantize", None), "kind", None) == quantize


def test_what_the_rest_of_the_run_counts_with_is_kept_of_a_method_that_is_replaced():
    given_method = {"kind": "topk", "density": 0.1, "momentum": 0.9, "exempt": {"smaller_than": 9}}
    training = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
    method = at_density(
        spec(compressor=given_method | {"reduction": "sum"}, training=training), 0.1
    ).compressor
    assert (method.kind, method.momentum, method.reduction) == ("strom", 0.9, "sum")
    assert method.exempt.smaller_than == 9


def test_the_run_without_compression_is_that_of_the_same_spec_without_a_method():
    plain = spec(compressor="none", name="base", storage="elsewhere")
    assert (
        without_compression(spec(compressor="strom(0.1) | golomb_rice")).fingerprint() == plain.fingerprint()
    )


def test_the_run_without_compression_has_the_methods_momentum_and_nothing_else_of_it():
    method = {"kind": "wgt", "tau": 0.1, "momentum": 0.7, "reduction": "sum"}
    training = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
    back = {"mode": "simulated", "of": {"mode": "sharded", "back": {"kind": "fp16"}}}
    bare = without_compression(spec(name="mine", compressor=method, training=training, sync=back))
    assert bare.compressor.model_dump() == {"kind": "none", "reduction": "sum", "nonfinite": "refuse"}
    assert bare.training.optimizer.momentum == 0.7
    assert bare.sync.of.back is None
    assert bare.name.startswith("mine: none")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--budget", "0"], "--budget 0: must be MB, greater than 0"),
        (["--budget", "nan"], "--budget nan"),
        (["--tolerance", "-1"], "--tolerance -1: must be points"),
        (["--budget", "0.001"], "--budget 0.001 MB: headers alone take"),
        (["--budget", "9", "--sync.mode", "ring"], "sync.mode = ring: .*; give --tolerance"),
        (["--budget", "9", "--law", "law.yaml"], "--law with --budget: a law goes by a tolerance"),
        (["--law", "nowhere.yaml"], "nowhere.yaml: cannot be read: No such file"),
        (
            ["--law", str(SHIPPED), "--training.optimizer.kind", "adam"],
            "training.optimizer.kind = adam: the law was fitted to runs with sgd",
        ),
        (
            ["--law", str(SHIPPED), "--compressor", "linear", "--once"],
            "compressor.kind = linear: must be strom, which the law was fitted for, or none",
        ),
        (
            ["--law", str(SHIPPED), "--sync.mode", "weights"],
            "compressor.tau = law with sync.mode = weights",
        ),
        (["--nonsense", "1"], "no such field"),
    ],
)
@pytest.mark.usefixtures("uri")
def test_the_command_refuses_before_it_trains(arguments, problem, tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text("data: {kind: digits}\nmodel: {kind: mlp, widths: [16]}\n")
    assert cli.main(["auto", str(path), "--workers.cpus", "0.5", *arguments]) == cli.WRONG_INPUT
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(problem, line)


def test_numbers_out_of_range_are_refused_and_the_default_is_half_a_point():
    assert Goal.read(None, None) == Goal(None, 0.5)
    with pytest.raises(SpecError):
        Goal.read(math.inf, None)


def test_a_result_is_held_against_the_budget():
    assert spent_line(4.5, 5) == "used 4.5 of 5 MB, 90%"
    assert "1 MB too much" in spent_line(6, 5)


@settings(deadline=None, max_examples=100)
@given(
    accuracies=st.lists(st.floats(0, 1), min_size=2, max_size=5),
    tolerance=st.floats(0, 100),
    failing=st.integers(0, 5),
)
def test_one_after_the_other_is_tried_until_one_is_within_the_tolerance(accuracies, tolerance, failing):
    bare, *tried = (spec(name=f"{i}") for i in range(len(accuracies)))
    asked = []

    def train(one):
        asked.append(one)
        return None if len(asked) > failing else Outcome(accuracies[len(asked) - 1], 1.0)

    done = attempts(train, bare, tried, tolerance)
    assert asked == [bare, *tried][: len(asked)]
    within = [100 * (accuracies[0] - each) <= tolerance + 1e-9 for each in accuracies[1:]]
    wanted = 1 + (within.index(True) + 1 if True in within else len(tried))
    assert len(done) == min(wanted, failing)
    assert len(asked) == min(wanted, failing + 1)
    assert [each.spec for each in done] == asked[: len(done)]
    assert [each.outcome.accuracy for each in done] == accuracies[: len(done)]


def test_what_is_missing_counts_from_the_run_without_compression():
    done = [Attempt(spec(), Outcome(0.95, 9.0)), Attempt(spec(seed=1), Outcome(0.93, 1.0))]
    assert missing(done, 0.5) == pytest.approx(1.5)
    assert missing(done, 2.0) <= 0


def threshold_of(one: RunSpec) -> float | str:
    """What a run's threshold is: none, by a law, or a density."""
    tau = getattr(one.compressor, "tau", getattr(one.compressor, "floor", None))
    kind = getattr(tau, "kind", "none")
    return tau.density if kind == "allocate" else kind


class Trainer:
    """Stands for `taugrad train`: leaves finished runs with accuracies by how the threshold was found."""

    def __init__(self, uri: str, accuracies: dict[float | str, float], status: str = "FINISHED") -> None:
        self.client, self.accuracies, self.status = open_client(uri), accuracies, status
        self.trained: list[float | str] = []
        self.specs: list[RunSpec] = []

    def __call__(self, one: RunSpec) -> int:
        threshold = threshold_of(one)
        self.trained.append(threshold)
        self.specs.append(one)
        leave(self.client, one, self.accuracies.get(threshold, 0.0), self.status)
        return OK if self.status == "FINISHED" else FAILED


def leave(client, one: RunSpec, accuracy: float, status: str = "FINISHED", **tags: str) -> str:
    run_id = start_run(client, one, tags=tags)
    client.log_metric(run_id, names.EVAL_ACCURACY, accuracy)
    client.log_metric(run_id, names.TOTAL_WIRE_GB, 0.002)
    finish_run(client, run_id, status)
    return run_id


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory):
    """A database without runs: to make one takes MLflow seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    open_client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(empty_store, tmp_path, monkeypatch):
    uri = f"sqlite:///{copy(empty_store, tmp_path)}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


LOW, HIGH = DENSITIES
ADAM = {"epochs": 2, "batch_size": 64, "optimizer": {"kind": "adam"}}
WEIGHTS = {"mode": "simulated", "of": {"mode": "weights"}}


def test_a_tolerance_takes_what_is_trained_already(uri, capsys):
    train = Trainer(uri, {"none": 0.9, "law": 0.8, HIGH: 0.896})
    assert run_auto(spec(), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", "law", "law", HIGH]
    first, second = (one.compressor.tau.constant for one in train.specs[1:3])
    assert second < first  # a stricter tau
    assert "within 0.5 points" in capsys.readouterr().out
    assert run_auto(spec(), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", "law", "law", HIGH]
    assert capsys.readouterr().out.count("finished before") == 4
    # Another tolerance is other taus by the law; the other two runs are known.
    assert run_auto(spec(), "spec.yaml", Goal(None, 1.0), train) == OK
    assert train.trained[4:] == ["law", "law"]
    assert run_auto(spec(seed=1), "spec.yaml", Goal(None, 20.0), train) == OK
    assert train.trained[6:] == ["none", "law"]


def test_where_none_is_within_the_tolerance_that_is_said(uri, capsys):
    train = Trainer(uri, {"none": 0.9, "law": 0.8, HIGH: 0.85})
    assert run_auto(spec(compressor="strom(0.3)"), "spec.yaml", Goal(None, 0.5), train) == FAILED
    assert train.trained == ["none", "law", "law", HIGH]
    assert "none is within 0.5 points: the last one is 4.50 points below that" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "reason", "kind"),
    [
        (
            {"training": ADAM},
            "by density: training.optimizer.kind = adam: the law was fitted to runs with sgd",
            "strom",
        ),
        ({"compressor": "wgt(0.1)"}, "by density: compressor.kind = wgt: must be strom", "wgt"),
        ({"sync": WEIGHTS}, "by density: compressor.tau = law with sync.of.mode = weights", "strom"),
    ],
)
def test_where_the_law_that_ships_does_not_hold_densities_are_tried(uri, capsys, fields, reason, kind):
    train = Trainer(uri, {"none": 0.9, LOW: 0.7, HIGH: 0.9})
    assert run_auto(spec(**fields), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", LOW, HIGH]
    assert [one.compressor.kind for one in train.specs[1:]] == [kind, kind]
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize(("fields", "threshold"), [({}, "law"), ({"training": ADAM}, LOW)])
def test_once_is_one_training_whose_result_is_asked_of_nobody(uri, monkeypatch, fields, threshold):
    monkeypatch.setattr("taugrad.search.auto.finished", lambda *_: pytest.fail("asked MLflow"))
    train = Trainer(uri, {})
    assert run_auto(spec(**fields), "spec.yaml", Goal(None, 0.5, once=True), train) == OK
    assert train.trained == [threshold]
    train.status = "FAILED"
    assert run_auto(spec(**fields), "spec.yaml", Goal(None, 0.5, once=True), train) == FAILED


def a_law(kind: str, optimizer: str = "sgd") -> FittedLaw:
    """The one that ships, as if it were for another method or optimizer."""
    looked_for = "floor" if kind == "entropy" else "tau"
    fields = read_law(SHIPPED).model_dump() | {"kind": kind, "looked_for": looked_for}
    return FittedLaw.model_validate(fields | {"optimizers": [optimizer]})


def test_a_law_of_ones_own_takes_the_place_of_the_one_that_ships(uri, tmp_path, capsys):
    path = tmp_path / "law.yaml"
    write_law(a_law("wgt", "adam"), path, "")
    train = Trainer(uri, {"none": 0.9, "law": 0.5, HIGH: 0.9})
    given_spec = spec(compressor="wgt(0.1) | linear", training=ADAM)
    assert run_auto(given_spec, "spec.yaml", Goal(None, 0.5, path), train) == OK
    assert train.trained == ["none", "law", "law", HIGH]
    assert "by density" not in capsys.readouterr().out
    assert [one.compressor.quantize.kind for one in train.specs[1:]] == ["linear"] * 3


def test_a_floor_by_a_law_has_no_density_to_fall_back_on(uri, tmp_path):
    path = tmp_path / "law.yaml"
    write_law(a_law("entropy"), path, "")
    train = Trainer(uri, {"none": 0.9, "law": 0.5})
    assert run_auto(spec(), "spec.yaml", Goal(None, 0.5, path), train) == FAILED
    assert train.trained == ["none", "law", "law"]
    assert [one.compressor.kind for one in train.specs] == ["none", "entropy", "entropy"]


def test_the_same_run_is_not_tried_twice(uri):
    train = Trainer(uri, {"none": 0.9, "law": 0.5, HIGH: 0.9})
    assert run_auto(spec(), "spec.yaml", Goal(None, 0.0), train) == OK
    assert train.trained == ["none", "law", HIGH]  # below its least tolerance the law says one thing


def test_a_law_that_the_user_named_and_that_does_not_hold_is_an_error(uri, tmp_path):
    path = tmp_path / "law.yaml"
    write_law(a_law("bgt"), path, "")
    train = Trainer(uri, {})
    for fields in ({"compressor": "strom(0.1)"}, {"training": ADAM}, {"sync": WEIGHTS}):
        with pytest.raises(SpecError, match="law") as refused:
            run_auto(spec(**fields), "spec.yaml", Goal(None, 0.5, path), train)
        assert refused.value.source == "spec.yaml"
    assert train.trained == []


@pytest.mark.parametrize("kind", ["wgt", "bgt", "qgt", "strom", "entropy"])
def test_a_law_replaces_the_number_and_nothing_else_of_its_own_method(kind):
    law, line = a_law(kind), {"kind": kind, "decay": 0.5, "reduction": "sum"}
    given_spec = spec(compressor=line | ({} if kind == "entropy" else {"tau": 0.1}), name="mine")
    found = by_law(given_spec, law, 2.0)
    assert getattr(found.compressor, law.looked_for) == law.of(given_spec, 2.0)
    kept = found.compressor.model_dump(exclude={law.looked_for})
    assert kept == given_spec.compressor.model_dump(exclude={law.looked_for})
    assert found.training == given_spec.training
    assert found.name.startswith(f"mine: {kind}(")
    assert by_law(spec(), law, 2.0).compressor.kind == kind  # in place of none


def test_what_the_rest_of_the_run_counts_with_is_kept_where_a_law_is_put_in_place_of_none():
    bare = {"kind": "none", "reduction": "sum", "nonfinite": "skip"}
    found = by_law(spec(compressor=bare), read_law(SHIPPED), 0.5).compressor
    assert (found.kind, found.codec, found.reduction, found.nonfinite) == (
        "strom",
        "golomb_rice",
        "sum",
        "skip",
    )


def test_a_law_says_nothing_of_methods_without_its_number():
    with pytest.raises(LawError, match=r"compressor.kind = topk: must be strom"):
        by_law(spec(compressor="topk(0.1)"), read_law(SHIPPED), 0.5)


def test_a_failed_training_ends_the_search_for_a_tolerance(uri):
    train = Trainer(uri, {}, status="FAILED")
    assert run_auto(spec(), "spec.yaml", Goal(None, 0.5), train) == FAILED
    assert train.trained == ["none"]


def test_a_budget_is_one_training(uri, capsys):
    train = Trainer(uri, {})
    assert run_auto(spec(compressor="linear"), "spec.yaml", Goal(0.03, 0.5), train) == OK
    (density,) = train.trained
    cost = cost_of(at_density(spec(), density))
    assert cost.wire_bytes(density) <= 0.03e6 < cost.wire_bytes(1.02 * density)
    out = capsys.readouterr().out
    assert "linear has no threshold" in out
    assert "used 2 of 0.03 MB" in out


def test_only_the_same_computation_that_came_to_its_end_counts(uri):
    client, one = open_client(uri), spec(name="a", storage="elsewhere")
    assert finished(client, one) is None
    leave(client, one, 0.1, "FAILED")
    leave(client, spec(seed=1), 0.2)
    leave(client, one, 0.3, **{names.TAG_TRIAL: "4"})
    leave(client, spec(experiment="other"), 0.4)
    assert finished(client, one) is None
    run_id = leave(client, spec(), 0.5)
    found = finished(client, one)
    assert found is not None
    assert (found.run_id, found.accuracy, found.wire_bytes) == (run_id, 0.5, 2e6)
