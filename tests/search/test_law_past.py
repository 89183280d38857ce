"""Past runs in a real MLflow store: which settings they make up, and `taugrad law` from runs to a file."""

import math
import re
from collections.abc import Mapping
from typing import Any

import finished
import pytest
from specs import digits

from taugrad import cli
from taugrad.compressors.tau.by_law import LayerStatistics, features
from taugrad.platform.exit_codes import OK
from taugrad.platform.spec import SpecError
from taugrad.platform.tracking import names
from taugrad.platform.tracking.names import layer_metric
from taugrad.platform.tracking.store import open_client
from taugrad.search.law.command import run_law
from taugrad.search.law.fitting import read_law
from taugrad.search.law.past import PastSetting, past_settings
from taugrad.search.objective import Outcome

Layers = Mapping[str, tuple[float, float, float, float]]
"""Elements, root mean square and two percentiles, by name."""

FIRST: Layers = {"a.weight": (1024.0, 0.02, 0.08, 0.1), "b.bias": (10.0, 0.3, 0.5, 0.5)}
LATER: Layers = {"a.weight": (1024.0, 2.0, 3.0, 4.0), "b.bias": (10.0, 2.0, 3.0, 4.0)}
MOVED = {"training": {"optimizer": {"kind": "sgd", "momentum": 0.0, "weight_decay": 0.005}}}
"""Beside momentum of 0.9 in the compressor what the default, 0.0005, is beside the optimizer's."""
_QUANTITIES = ("elements", "grad_rms", "grad_p99", "grad_p999")


def leave(
    client: Any,
    line: str,
    accuracy: float | None,
    wire_mb: float = 1.0,
    *,
    status: str = "FINISHED",
    layers: Mapping[int, Layers] | None = None,
    tags: Mapping[str, str] | None = None,
    **fields: Any,
) -> str:
    """A run as training leaves one; its id."""
    final = {} if accuracy is None else {names.EVAL_ACCURACY: accuracy, names.TOTAL_WIRE_GB: wire_mb / 1e3}
    seen = {
        step: {
            layer_metric(layer, what): value
            for layer, values in statistics.items()
            for what, value in zip(_QUANTITIES, values, strict=True)
        }
        for step, statistics in (layers or {}).items()
    }
    spec = digits(**{"experiment": "past", "compressor": line, "training": {}} | fields)
    return finished.leave(client, spec, final, status, seen, **(tags or {}))


@pytest.fixture(scope="module")
def uri(tmp_path_factory, new_store):
    return new_store(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def runs(uri):
    """Ids of runs, by what each of them is there for."""
    client = open_client(uri)
    trial = {names.TAG_TRIAL: "3", "mlflow.parentRunId": "0"}
    batch = {"training": {"batch_size": 128}}
    results = {
        "bare": leave(client, "none", 0.95, 90, layers={2: LATER}),
        "bare, other seed": leave(client, "none", 0.93, 90, seed=1),
        "low": leave(client, "strom(0.01)", 0.94, 3),
        "low, other seed": leave(client, "strom(0.01)", 0.92, 4, seed=1, layers={1: FIRST, 2: LATER}),
        "elsewhere": leave(
            client,
            "strom(0.1)",
            0.90,
            2,
            name="mine",
            storage="elsewhere",
            tracking={"layer_interval": 7},
            checkpoint={"interval": 3},
            workers={"cpus": 0.5},
        ),
        "trial": leave(client, "strom(0.2)", 0.88, 1, tags=trial),
        "density": leave(client, "strom(density(0.01))", 0.91),
        "other rule": leave(client, "wgt(0.3)", 0.91),
        "failed": leave(client, "strom(0.4)", 0.91, status="FAILED"),
        "killed": leave(client, "strom(0.5)", 0.91, status="KILLED"),
        "running": leave(client, "strom(0.6)", 0.91, status="RUNNING"),
        "without a result": leave(client, "strom(0.7)", None),
        "batch": leave(client, "strom(0.1)", 0.6, 5, layers={50: LATER}, **batch),
        "codec": leave(client, "strom(0.1) | golomb_rice", 0.5, 6),
        "own momentum": leave(client, "strom(0.1, momentum=0.9)", 0.7, **MOVED),
        "other experiment": leave(client, "strom(0.1)", 0.4, experiment="other"),
        "floor": leave(client, "entropy(floor=-2)", 0.4),
        "floor by a law": leave(client, "entropy(law(1))", 0.4),
    }
    for rate in (0.1, 0.2, 0.4):  # taus far enough apart to be told apart, and a best one that is known
        for tau, accuracy in ((0.01, 0.95), (rate, 0.92), (100 * rate, 0.86), (1000.0, 0.1)):
            fleet = {"experiment": "fleet", "training": {"optimizer": {"kind": "sgd", "lr": rate}}}
            leave(client, f"strom({tau})", accuracy, 1 / tau, layers={1: FIRST}, **fleet)
            if tau == rate:
                leave(client, "none", 0.95, 90, **fleet)
    for lost, rate in ((True, 0.1), (False, 0.2)):
        few = {"experiment": "few", "training": {"optimizer": {"kind": "sgd", "lr": rate}}}
        leave(client, "none", 0.95, 90, layers={1: FIRST} if lost else None, **few)
        leave(client, "strom(1)", 0.1 if lost else 0.95, **few)
    client.create_experiment("empty")
    client.delete_experiment(client.create_experiment("deleted"))
    return results


@pytest.fixture
def settings(uri, runs):
    client = open_client(uri)
    return past_settings(client, [client.get_experiment_by_name("past").experiment_id], "strom")


def ids(setting: PastSetting) -> list[str]:
    return [run.run_id for run in setting.runs]


def test_runs_that_differ_in_the_value_the_seed_and_where_they_ran_are_one_setting(settings, runs):
    assert ids(settings[0]) == [runs[name] for name in ("low", "low, other seed", "elsewhere", "trial")]
    assert [run.value for run in settings[0].runs] == [0.01, 0.01, 0.1, 0.2]
    assert settings[0].runs[1].outcome == Outcome(0.92, pytest.approx(4e6))


def test_baselines_are_those_of_the_same_run_without_compression(settings):
    accuracies = [[baseline.value for baseline in setting.baselines] for setting in settings]
    assert accuracies == [[0.95, 0.93], [], [0.95, 0.93], [0.95, 0.93]]
    assert settings[0].baselines[0].wire_bytes == pytest.approx(90e6)


def test_features_are_those_of_the_first_iteration_of_any_run_around(settings):
    by_hand = features([LayerStatistics(*arguments) for arguments in FIRST.values()])
    assert settings[0].features == settings[2].features == by_hand
    assert settings[1].features is None  # what was recorded of it is of a later iteration
    total = 1024 * 0.02**2 + 10 * 0.3**2
    assert by_hand.rms == pytest.approx(0.5 * math.log(total / 1034))


@pytest.fixture
def store(uri, runs, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)


@pytest.mark.usefixtures("store")
def test_a_law_is_fitted_shown_and_written(tmp_path, capsys):
    path = tmp_path / "new" / "law.yaml"
    assert cli.main(["law", "fleet", "-o", str(path)]) == OK
    law = read_law(path)
    assert (law.kind, law.settings, law.optimizers) == ("strom", 3, ("sgd",))
    assert path.read_text().startswith("# taugrad law fleet --of strom, 20")
    out = capsys.readouterr().out
    assert law.describe() in out
    assert f"a factor of {math.exp(law.error):.2f}" in out
    assert f"taugrad auto SPEC.yaml --law {path}" in out
    # Within 2 points: 0.01, at most 1; within 4 and 8: the learning rate; within 16: a hundred times that.
    for rate in ("0.1", "0.2", "0.4"):
        row = next(line for line in out.splitlines() if f"lr {rate}," in line)
        best = [float(match) for match in re.findall(r"([\d.]+) / ", row)]
        assert best == [0.01, float(rate), float(rate), 100 * float(rate)]
    # All that varies besides the tolerance is the learning rate, and tau rises with both.
    assert law.weights["tolerance"] > 0
    assert law.weights["lr"] > 0
    assert all(not law.weights[name] for name in ("rms", "p99", "p999", "layer", "batch", "workers"))


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("experiments", "kind", "problems"),
    [
        (["deleted"], "strom", ["EXPERIMENT 'deleted': not in sqlite"]),
        (
            ["empty"],
            "strom",
            ["of strom has a number as compressor.tau; there is no finished run at all; search over compr"],
        ),
        (
            ["fleet"],
            "entropy",
            [r"as compressor.floor; there are \d of none, \d+ of strom; --of strom reads what is there, or"],
        ),
        (
            ["few"],
            "strom",
            [
                "0 settings have a best value, and a law needs at least 3",
                "left out: .* lr 0.1, .*: every run lost more than 16 points",
                "left out: .* lr 0.2, .*: no gradients recorded",
            ],
        ),
    ],
)
def test_without_enough_runs_nothing_is_written(tmp_path, experiments, kind, problems):
    path = tmp_path / "law.yaml"
    with pytest.raises(SpecError) as refused:
        run_law(experiments, kind, path)
    assert len(refused.value.problems) == len(problems)
    for result, problem in zip(refused.value.problems, problems, strict=True):
        assert re.search(problem, result)
    assert not path.exists()
