"""`taugrad auto`: its specs, refusals, the way to a tolerance, a budget."""

import pytest
from finished import StandIn, leave
from hypothesis import given, settings
from hypothesis import strategies as st
from specs import digits

from taugrad.platform.spec import RunSpec
from taugrad.platform.synchronization.config import SimulatedSync, real
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client
from taugrad.search.attempts import MARGIN, tightening
from taugrad.search.auto import DENSITIES, FAILED, OK, Goal, run_auto
from taugrad.search.auto_specs import at_density, at_tolerance, without_compression
from taugrad.search.costs import cost_of
from taugrad.search.measured import finished


@settings(max_examples=50)
@given(tolerance=st.floats(0.1, 20), lost=st.floats(0.1, 90))
def test_the_next_tau_should_lose_half_of_the_tolerance(tolerance, lost):
    """Where what is lost is proportional to tau."""
    last = at_density(digits(), 0.03)
    further = tightening(digits(), tolerance, last)
    first, again = next(further), further.send(lost)
    assert first == at_tolerance(digits(), tolerance)
    assert further.send(lost) is last
    assert next(further, None) is None
    before, after = first.compressor.tau, again.compressor.tau
    assert again.compressor == first.compressor.model_copy(update={"tau": after})
    assert lost * after / before == pytest.approx(max(tolerance / MARGIN, 0.01 * lost), rel=0.01)


def threshold_of(one: RunSpec) -> float | str:
    """What a run's threshold is: none, a tau, or a density."""
    tau = getattr(one.compressor, "tau", None)
    kind = "tau" if isinstance(tau, float) else getattr(tau, "kind", "none")
    return {"allocate": getattr(tau, "density", kind), "density": getattr(tau, "target", kind)}.get(
        kind, kind
    )


def metrics_of(accuracy: float) -> dict[str, float]:
    return {names.EVAL_ACCURACY: accuracy, names.TOTAL_WIRE_GB: 0.002}


class Trainer(StandIn):
    """Leaves runs with accuracies by how the threshold was found."""

    def __init__(self, uri: str, accuracies: dict[float | str, float]) -> None:
        super().__init__(uri, lambda one: metrics_of(accuracies.get(threshold_of(one), 0.0)), "FINISHED")

    @property
    def trained(self) -> list[float | str]:
        return [threshold_of(one) for one in self.specs]


LOW, HIGH = DENSITIES
ADAM = {"epochs": 2, "batch_size": 64, "optimizer": {"kind": "adam"}}
WEIGHTS = {"mode": "simulated", "of": {"mode": "weights"}}


def test_a_tolerance_takes_what_is_trained_already(uri, capsys):
    train = Trainer(uri, {"none": 0.9, "tau": 0.8, HIGH: 0.896})
    assert run_auto(digits(), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", "tau", "tau", HIGH]
    first, second = (one.compressor.tau for one in train.specs[1:3])
    assert second < first  # a stricter tau
    said = capsys.readouterr().out
    assert "within 0.5 points" in said
    told = [line for line in said.splitlines() if line.startswith("training ")]
    assert told == [f"training {i} of at most 4: {one.title}" for i, one in enumerate(train.specs, start=1)]
    assert run_auto(digits(), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", "tau", "tau", HIGH]
    assert capsys.readouterr().out.count("finished before") == 4
    # Another tolerance is other taus; the other two runs are known.
    assert run_auto(digits(), "spec.yaml", Goal(None, 1.0), train) == OK
    assert train.trained[4:] == ["tau", "tau"]
    assert run_auto(digits(seed=1), "spec.yaml", Goal(None, 20.0), train) == OK
    assert train.trained[6:] == ["none", "tau"]


@pytest.mark.parametrize(
    ("tau", "allocate", "nearest", "over"), [(0.8, 0.85, 3, "4.50"), (0.87, 0.8, 1, "2.50")]
)
def test_where_none_is_within_the_tolerance_the_nearest_is_named(uri, capsys, tau, allocate, nearest, over):
    train = Trainer(uri, {"none": 0.9, "tau": tau, HIGH: allocate})
    assert run_auto(digits(compressor="strom(0.3)"), "spec.yaml", Goal(None, 0.5), train) == FAILED
    assert train.trained == ["none", "tau", "tau", HIGH]
    title = train.specs[nearest].title
    said = f"no training lost 0.5 points or less: {title} comes nearest, {over} points beyond that"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "reason", "kind"),
    [
        (
            {"training": ADAM, "sync": {"mode": "sharded"}},
            "by density: training.optimizer.kind = adam: tau is known for sgd",
            "strom",
        ),
        ({"compressor": "wgt(0.1)"}, "by density: compressor.kind = wgt: tau is known for strom", "wgt"),
        ({"sync": WEIGHTS}, "by density: gradients are not exchanged", "strom"),
        # Where local steps cannot be:
        ({"training": ADAM, "workers": {"count": 1}}, "by density: ", "strom"),
        ({"training": ADAM, "compressor": "strom(0.1, nonfinite='skip')"}, "by density: ", "strom"),
    ],
)
def test_where_no_tau_is_known_densities_are_tried(uri, capsys, fields, reason, kind):
    train = Trainer(uri, {"none": 0.9, LOW: 0.7, HIGH: 0.9})
    assert run_auto(digits(**fields), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", LOW, HIGH]
    assert [one.compressor.kind for one in train.specs[1:]] == [kind, kind]
    said = capsys.readouterr().out
    assert reason in said
    assert f"training 3 of at most 3: {train.specs[2].title}" in said


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("line", ["none", "wgt(0.1)"])
def test_an_adaptive_optimizer_takes_local_steps_whose_differences_are_thresholded(
    uri, capsys, simulated, line
):
    train = Trainer(uri, {"none": 0.9, 0.1: 0.8999})
    sync = {"mode": "simulated"} if simulated else {"mode": "allgather"}
    given_spec = digits(training=ADAM, sync=sync, compressor=line, workers={"count": 4, "cpus": 0.25})
    assert run_auto(given_spec, "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", 0.02, 0.1]
    bare, first, second = train.specs
    assert bare.training == given_spec.training
    assert bare.sync == given_spec.sync
    for one, every in ((first, 10), (second, 4)):
        mode = real(one.sync)
        assert isinstance(one.sync, SimulatedSync) == simulated
        assert (mode.mode, mode.every, mode.unsent) == ("weights", every, 0.25)
        assert one.training.optimizer.lr == pytest.approx(2 * given_spec.training.optimizer.lr)
        assert one.compressor.kind == ("strom" if line == "none" else "wgt")
    said = capsys.readouterr().out
    assert "by local steps: training.optimizer.kind = adam: tau is known for sgd" in said
    assert "at 2 times the learning rate" in said


@pytest.mark.parametrize(("fields", "threshold"), [({}, "tau"), ({"training": ADAM}, 0.1)])
def test_once_is_one_training_whose_result_is_asked_of_nobody(uri, monkeypatch, fields, threshold):
    monkeypatch.setattr("taugrad.search.auto.finished", lambda *_: pytest.fail("asked MLflow"))
    train = Trainer(uri, {})
    assert run_auto(digits(**fields), "spec.yaml", Goal(None, 0.5, once=True), train) == OK
    assert train.trained == [threshold]
    train.status = "FAILED"
    assert run_auto(digits(**fields), "spec.yaml", Goal(None, 0.5, once=True), train) == FAILED


def test_a_budget_is_one_training(uri, capsys):
    train = Trainer(uri, {})
    assert run_auto(digits(compressor="linear"), "spec.yaml", Goal(0.03, 0.5), train) == OK
    (density,) = train.trained
    cost = cost_of(at_density(digits(), density))
    assert cost.wire_bytes(density) <= 0.03e6 < cost.wire_bytes(1.02 * density)
    out = capsys.readouterr().out
    assert "linear has no threshold" in out
    assert "used 2 of 0.03 MB" in out


def test_only_the_same_computation_that_came_to_its_end_counts(uri):
    client, one = open_client(uri), digits(name="a", storage="elsewhere")
    assert finished(client, one, ACCURACY) is None
    leave(client, one, metrics_of(0.1), "FAILED")
    leave(client, digits(seed=1), metrics_of(0.2))
    leave(client, one, metrics_of(0.3), **{names.TAG_TRIAL: "4"})
    leave(client, digits(experiment="other"), metrics_of(0.4))
    assert finished(client, one, ACCURACY) is None
    run_id = leave(client, digits(), metrics_of(0.5))
    result = finished(client, one, ACCURACY)
    assert (result.run_id, result.value, result.wire_bytes) == (run_id, 0.5, 2e6)


# The runs' specs


def test_the_run_without_compression_has_the_methods_momentum_and_nothing_else_of_it():
    method = {"kind": "wgt", "tau": 0.1, "momentum": 0.7, "reduction": "sum"}
    training = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
    back = {"mode": "simulated", "of": {"mode": "sharded", "back": {"kind": "fp16"}}}
    bare = without_compression(digits(name="mine", compressor=method, training=training, sync=back))
    assert bare.compressor.model_dump() == {"kind": "none", "reduction": "sum", "nonfinite": "refuse"}
    assert bare.training.optimizer.momentum == 0.7
    assert bare.sync.of.back is None
    assert bare.name.startswith("mine: none")


def test_tau_grows_with_the_tolerance_and_replaces_nothing_else():
    training = {"optimizer": {"kind": "sgd", "momentum": 0.0}}
    line = "strom(0.1, momentum=0.5, decay=0.5) | raw"
    given_spec = digits(compressor=line, training=training, name="mine")
    one, four = (at_tolerance(given_spec, points) for points in (1.0, 4.0))
    assert four.compressor.tau == pytest.approx(2 * one.compressor.tau, rel=1e-3)
    assert one.compressor == given_spec.compressor.model_copy(update={"tau": one.compressor.tau})
    assert one.training == given_spec.training
    assert one.name.startswith("mine: strom(")
    assert at_tolerance(digits(), 2.0).compressor.kind == "strom"  # in place of none
    assert at_tolerance(given_spec, 0.0) == at_tolerance(given_spec, 0.1)


def test_momentum_goes_before_the_threshold():
    optimizer = {"kind": "sgd", "lr": 0.05, "momentum": 0.8, "weight_decay": 0.001}
    given_spec = digits(compressor="strom(0.1)", training={"optimizer": optimizer}, name="mine")
    result = at_tolerance(given_spec, 2.0)
    assert result.compressor.momentum == 0.8
    changed = result.training.optimizer.model_dump(exclude={"momentum", "weight_decay"})
    assert changed == given_spec.training.optimizer.model_dump(exclude={"momentum", "weight_decay"})
    assert (result.training.optimizer.momentum, result.training.optimizer.weight_decay) == (0, 0.005)
    still = at_tolerance(digits(training={"optimizer": optimizer | {"momentum": 0.0}}), 2.0).compressor.tau
    assert result.compressor.tau == pytest.approx(
        still / 0.2, rel=1e-3
    )  # a steady gradient is as much larger
    again = at_tolerance(result, 2.0)
    assert again == result.model_copy(update={"name": again.name})
    assert without_compression(result).fingerprint() == without_compression(given_spec).fingerprint()
