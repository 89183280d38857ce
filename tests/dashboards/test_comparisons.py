"""Runs are compared only with runs that were trained alike, and rows that look alike are told apart."""

import csv
from types import SimpleNamespace
from typing import Any

import mlflow_data
import pictures
import pytest
from html_page import Page
from mlflow_data import made_up

from taugrad.cli import main
from taugrad.dashboards import gallery, verdict
from taugrad.dashboards.groups import baseline, by_setting, comparisons
from taugrad.dashboards.runs import compared_runs
from taugrad.dashboards.searches import SearchRuns, searches
from taugrad.platform.tasks.metric import ACCURACY
from taugrad.platform.tracking import names
from taugrad.platform.tracking.store import open_client
from taugrad.search.objective import TrialOutcome, front
from taugrad.search.trial import summary

EPOCHS, SEARCHED = "training.epochs", {"training.optimizer.kind": "sgd", "sync.mode": "simulated"}


def test_a_run_is_compared_with_the_baseline_of_as_many_epochs():
    runs = [made_up("none", 0.97, **{EPOCHS: "10"}), made_up("wgt", 0.96, **{EPOCHS: "10"})]
    runs += [made_up("none", 0.99, **{EPOCHS: "20"}), made_up("wgt", 0.985, **{EPOCHS: "20"})]
    first, second = comparisons(by_setting(runs))
    assert [first.name, second.name] == ["10 epochs", "20 epochs"]
    for comparison, lost in ((first, 1.0), (second, 0.5)):
        (compressed,) = (group for group in comparison.groups if not group.is_baseline)
        change = verdict.change(compressed, baseline(comparison.groups))
        assert change.lost == pytest.approx(lost)


def test_a_simulated_search_beside_real_trainings_has_its_own_baseline():
    """Its trial is 3 points better than its own baseline, and 22 worse than the trainings'."""
    trained = {"training.optimizer.kind": "adamw", "sync.mode": "allgather"}
    runs = [made_up("none", 0.95, seed, **trained) for seed in range(3)]
    runs += [made_up("wgt", 0.94, seed, **trained) for seed in range(3)]
    runs += [made_up("none", 0.70, **SEARCHED), made_up("wgt", 0.73, **SEARCHED)]
    first, second = comparisons(by_setting(runs))
    assert first.name == "real workers, optimizer adamw"
    assert second.name == "simulated workers, optimizer sgd"
    (trial,) = (group for group in second.groups if not group.is_baseline)
    assert verdict.change(trial, baseline(second.groups)).mean == pytest.approx(3.0)


def test_rate_momentum_and_sync_are_compared_and_named_where_rows_are_alike():
    bare = {"sync.mode": "allgather", "training.optimizer.lr": "0.1", "training.optimizer.momentum": "0.9"}
    local = {"sync.mode": "weights", "sync.every": "8"}
    runs = [made_up("none", 0.97, **bare), made_up("wgt", 0.96, **bare)]
    runs += [
        made_up("wgt", 0.95, **bare | {"training.optimizer.lr": "0.2"}),
        made_up("wgt", 0.94, **bare | local),
    ]
    (only,) = comparisons(by_setting(runs))
    assert only.name == ""
    settings = [group.setting for group in only.groups if not group.is_baseline]
    assert len(set(settings)) == 3
    assert [text for text in settings if "lr 0.2" in text]
    assert [text for text in settings if "weights" in text]


def test_the_best_of_equally_many_baselines_is_compared_with():
    runs = [made_up("none", value, **{"training.optimizer.lr": str(value)}) for value in (0.8, 0.9, 0.7)]
    assert baseline(by_setting(runs)).value.mean == pytest.approx(90)


def test_readmes_own_order_and_a_filter(tmp_path, monkeypatch, new_store, capsys):
    """Ten epochs of two methods, then twenty of one: no baseline is borrowed from another group."""
    monkeypatch.setattr(gallery.Picture, "_png", pictures.drawn)
    uri = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    client = open_client(uri)
    for chain, density, accuracy in mlflow_data.CHAINS[:2]:
        mlflow_data.write_run(client, mlflow_data.spec_of(chain, "quick"), density, accuracy)
    longer = mlflow_data.spec_of("wgt(tau=0.003)", "quick", workers={"count": 4})
    mlflow_data.write_run(client, longer, 0.1, 0.99)
    assert main(["report", "quick", "-o", str(tmp_path / "all")]) == 0
    rows = list(csv.DictReader((tmp_path / "all" / "methods.csv").open()))
    assert {row["group"] for row in rows} == {"2 workers", "4 workers"}
    (alone,) = [row for row in rows if row["group"] == "4 workers"]
    assert alone["accuracy_change_points"] == ""
    page = Page((tmp_path / "all" / "report.html").read_text()).words
    assert "1 more group of runs was trained differently" in page

    only = "params.workers.count = '2'"
    assert main(["report", "quick", "-o", str(tmp_path / "two"), "--filter", only]) == 0
    rows = list(csv.DictReader((tmp_path / "two" / "methods.csv").open()))
    assert [row["method"] for row in rows] == ["none", "wgt"]
    assert main(["dashboard", "quick", "--filter", only]) == 0
    experiment_id = client.get_experiment_by_name("quick").experiment_id
    assert mlflow_data.read_view(client, experiment_id, "taugradcomparison")["searchFilter"] == only
    none = ["report", "quick", "-o", str(tmp_path / "no"), "--filter"]
    assert main([*none, "epochs is 10"]) == 2
    assert "--filter 'epochs is 10': " in capsys.readouterr().err
    assert main([*none, "params.workers.count = '9'"]) == 2
    assert not (tmp_path / "no").exists()


# A search, read back


def tried(trial: str, value: float, mb: float, seed: int = 0, status: str = "FINISHED", **fields: Any) -> Any:
    """A training of a search: with `epoch` one of taugrad's own, without it a user's."""
    metrics = {"eval/accuracy": value, "total/wire_gb": mb / 1000, "eval/examples": 1000.0}
    metrics |= {"epoch": fields.pop("epoch")} if "epoch" in fields else {}
    params = {"training.epochs": "4", "training.iterations": "None", "seed": str(seed)}
    params["compressor.kind"] = fields.pop("rule", "wgt")
    tags = {
        names.TAG_PARENT: "parent",
        names.TAG_TRIAL: trial,
        names.TAG_METRIC: ACCURACY.to_json(),
        **fields,
    }
    info = SimpleNamespace(run_id=f"{trial} {seed} {mb}", run_name=trial, status=status)
    return SimpleNamespace(info=info, data=SimpleNamespace(metrics=metrics, params=params, tags=tags))


def read_back(*runs: Any) -> SearchRuns:
    parent = SimpleNamespace(
        info=SimpleNamespace(run_id="parent"), data=SimpleNamespace(tags={names.TAG_SEARCH: "s"})
    )
    return searches([parent, *runs])["parent"]


def front_of(search: SearchRuns) -> list[tuple[float, int | None]]:
    return [(pytest.approx(point.wire_mb), point.place) for point in search.points]


def test_what_was_pruned_failed_or_interrupted_is_no_point():
    full = tried("0", 0.94, 4)
    failed_later = [
        tried("3", 0.9, 2, epoch=4.0, **{names.TAG_ENDING: "failed"}),
        tried("3", 0.8, 1, seed=1, epoch=1.0, status="FAILED", **{names.TAG_ENDING: "failed"}),
    ]
    search = read_back(
        full, tried("1", 0.4, 0.9, status="KILLED"), tried("2", 0.6, 0.8, status="FAILED"), *failed_later
    )
    assert front_of(search) == [(4, 1)]
    assert len(search.stopped) == 4
    assert [run.run_id for run in compared_runs([full, failed_later[1]])] == ["0 0 4", "3 1 1"]


def test_the_baseline_is_what_was_trained_as_one_in_full():
    whole = tried("baseline", 0.95, 4000, epoch=4.0, rule="none")
    interrupted = tried("baseline", 0.5, 1000, status="KILLED", epoch=1.0, rule="none")
    search = read_back(interrupted, whole, tried("0", 0.9, 5000, epoch=4.0, rule="none"))
    assert (search.baseline.value, search.baseline.wire_mb) == (95, 4000)
    assert front_of(search) == [(5000, 1)]
    assert not search.stopped


def test_runs_of_an_earlier_version_are_judged_by_accuracy():
    run = tried("0", 0.94, 4, epoch=4.0)
    del run.data.tags[names.TAG_METRIC]
    assert front_of(read_back(run)) == [(4, 1)]
    assert [old.metric for old in compared_runs([run])] == [ACCURACY]


def test_the_front_has_the_places_that_pick_takes():
    """By their means all three would be on it: 85% for 1 MB, 84% for 0.9 MB."""
    values = {0.9: (0.84, 0.84, 0.84), 1: (0.9, 0.7, 0.95), 3: (0.96, 0.96, 0.96)}
    runs = [
        tried(str(mb), value, mb, seed, epoch=4.0)
        for mb, trainings in values.items()
        for seed, value in enumerate(trainings)
    ]
    assert front_of(read_back(*runs)) == [(0.9, 1), (1, None), (3, 2)]
    outcomes = [summary([TrialOutcome(value, mb) for value in values[mb]], ACCURACY) for mb in values]
    assert [point.wire_bytes for point in front(outcomes, ACCURACY)] == [0.9, 3]
