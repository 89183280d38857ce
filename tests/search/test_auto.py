"""`taugrad auto`: its specs, refusals, the way to a tolerance, a budget."""

import pytest
from finished import StandIn, leave
from specs import digits

from taugrad.platform.spec import RunSpec, SpecError
from taugrad.platform.spec.synchronization import SimulatedSync, real
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client
from taugrad.search.auto import DENSITIES, FAILED, OK, Goal, run_auto
from taugrad.search.auto_specs import at_density, local_steps, without_compression
from taugrad.search.costs import cost_of
from taugrad.search.measured import finished


def threshold_of(one: RunSpec) -> float | str:
    """What a run's threshold is: none, or a density."""
    tau = getattr(one.compressor, "tau", None)
    kind = getattr(tau, "kind", "none")
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
    train = Trainer(uri, {"none": 0.9, LOW: 0.8, HIGH: 0.896})
    assert run_auto(digits(), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", LOW, HIGH]
    said = capsys.readouterr().out
    assert "within 0.5 points" in said
    assert "momentum 0.9 is applied before the threshold" in said
    assert [one.compressor.momentum for one in train.specs[1:]] == [0.9, 0.0]
    assert run_auto(digits(), "spec.yaml", Goal(None, 0.5), train) == OK
    assert run_auto(digits(), "spec.yaml", Goal(None, 20.0), train) == OK
    assert train.trained == ["none", LOW, HIGH]
    assert capsys.readouterr().out.count("finished before") == 5
    assert run_auto(digits(seed=1), "spec.yaml", Goal(None, 20.0), train) == OK
    assert train.trained[3:] == ["none", LOW]


@pytest.mark.parametrize(("low", "high", "nearest", "over"), [(0.8, 0.85, 2, "4.50"), (0.87, 0.8, 1, "2.50")])
def test_where_none_is_within_the_tolerance_the_nearest_is_named(uri, capsys, low, high, nearest, over):
    train = Trainer(uri, {"none": 0.9, LOW: low, HIGH: high})
    assert run_auto(digits(compressor="strom(0.3)"), "spec.yaml", Goal(None, 0.5), train) == FAILED
    assert train.trained == ["none", LOW, HIGH]
    title = train.specs[nearest].title
    said = f"no training lost 0.5 points or less: {title} comes nearest, {over} points beyond that"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"compressor": "wgt(0.1)"}, "wgt"),
        ({"sync": WEIGHTS}, "strom"),
        # Where local steps cannot be:
        ({"training": ADAM, "sync": {"mode": "gradients", "pattern": "sharded"}}, "strom"),
        ({"training": ADAM, "workers": {"count": 1}}, "strom"),
        ({"training": ADAM, "compressor": "strom(0.1, nonfinite='skip')"}, "strom"),
    ],
)
def test_densities_keep_a_rule_with_a_threshold(uri, fields, kind):
    train = Trainer(uri, {"none": 0.9, LOW: 0.7, HIGH: 0.9})
    assert run_auto(digits(**fields), "spec.yaml", Goal(None, 0.5), train) == OK
    assert train.trained == ["none", LOW, HIGH]
    assert [one.compressor.kind for one in train.specs[1:]] == [kind, kind]


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize("line", ["none", "wgt(0.1)"])
def test_an_adaptive_optimizer_takes_local_steps_whose_differences_are_thresholded(
    uri, capsys, simulated, line
):
    train = Trainer(uri, {"none": 0.9, 0.1: 0.8999})
    sync = {"mode": "simulated"} if simulated else {"mode": "gradients"}
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
    assert "by local steps: thresholds on gradients mislead adam" in said
    assert "at 2 times the learning rate" in said


@pytest.mark.parametrize(("fields", "threshold"), [({}, LOW), ({"training": ADAM}, 0.1)])
def test_once_is_one_training_whose_result_is_asked_of_nobody(uri, monkeypatch, fields, threshold):
    monkeypatch.setattr("taugrad.search.auto.finished", lambda *_: pytest.fail("asked MLflow"))
    train = Trainer(uri, {})
    assert run_auto(digits(**fields), "spec.yaml", Goal(None, None, once=True), train) == OK
    assert train.trained == [threshold]
    train.status = "FAILED"
    assert run_auto(digits(**fields), "spec.yaml", Goal(None, None, once=True), train) == FAILED


def test_trainings_that_are_compared_publish_nowhere(uri):
    train = Trainer(uri, {})
    spec = digits(publish={"path": "weights"})
    with pytest.raises(SpecError, match=r"^spec.yaml: publish.path = weights: several trainings"):
        run_auto(spec, "spec.yaml", Goal(None, 0.5), train)
    assert train.specs == []
    run_auto(spec, "spec.yaml", Goal(None, None, once=True), train)
    assert [one.publish.path for one in train.specs] == ["weights"]


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
    back = {
        "mode": "simulated",
        "of": {"mode": "gradients", "pattern": "sharded", "downlink": {"kind": "fp16"}},
    }
    bare = without_compression(digits(name="mine", compressor=method, training=training, sync=back))
    assert bare.compressor.model_dump() == {"kind": "none", "reduction": "sum", "nonfinite": "refuse"}
    assert bare.training.optimizer.momentum == 0.7
    assert bare.sync.of.downlink is None
    assert bare.name.startswith("mine: none")


def test_local_steps_are_encrypted_as_the_run_is():
    sync = {"mode": "gradients", "authenticated": True}
    assert local_steps(digits(compressor="wgt(0.1)", sync=sync), 4, 0.1).sync.authenticated
